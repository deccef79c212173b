// The work of one FusedInferAttentionScore call, cut into tasks that do not depend on the number of threads: rows of a
// kv head (or few rows of all of them) and a stretch of keys. Stretches of the same rows are merged afterwards.
#pragma once

#include <memory>
#include <vector>

#include "attention.h"
#include "attention_call.h"
#include "rows.h"

namespace kvfuse {

class AttentionTasks {
 public:
  // `out` and `lse` may be null where the node does not ask for them.
  AttentionTasks(const AttentionCall& call, const AttentionKernels& kernels, const RowKernels& rows, char* out,
                 float* lse);

  size_t tasks() const { return tasks_.size(); }
  void Run(size_t task) const;
  // Groups of rows whose keys were cut.
  size_t merges() const { return merges_.size(); }
  void Merge(size_t merge) const;

 private:
  // Rows are numbered token * group + query head of the group, within a kv head.
  struct Group {
    size_t entry, first_row, rows;
    size_t first_head, heads;  // kv heads
    size_t first_key, keys;    // that any of the rows sees
    bool few;
    size_t pieces = 1, part = 0;  // where its partial results begin
  };
  struct Task {
    size_t group, piece, first_key, last_key;
  };
  struct State;

  void Cut();
  void AddGroups(size_t entry);
  void Bounds(size_t entry, size_t token, size_t* first, size_t* last) const;
  void Few(const Group& group, const Task& task) const;
  void Many(const Group& group, const Task& task) const;
  void Finish(const Group& group, const Task& task, size_t head, State* state) const;
  void Write(const Group& group, size_t head, size_t row, float* y, float maximum, float sum) const;
  void Query(const Group& group, size_t head, size_t row, float* q, float* sum, float* constant) const;
  float* Part(const Group& group, size_t piece, size_t head, size_t row) const;
  void HideKeys(const Group& group, size_t first_key, size_t keys, float* s, size_t row_step, size_t key_step) const;
  void KeyFactors(const Group& group, size_t first_key, size_t keys, const State& state, float* s, size_t row_step,
                  size_t key_step) const;
  void ValueFactors(const Group& group, size_t first_key, size_t keys, const State& state, float* s, size_t row_step,
                    size_t key_step) const;

  const AttentionCall& call_;
  const AttentionKernels& kernels_;
  const RowKernels& rows_;
  char* out_;
  float* lse_;
  size_t width_, rope_, value_width_;
  std::vector<Group> groups_;
  std::vector<Task> tasks_;
  std::vector<size_t> merges_;
  std::unique_ptr<float[]> parts_;
  // int8 caches by channel or head: factors in fp32, [kv heads][columns]; empty where there are none.
  std::vector<float> key_scale_, key_offset_, value_scale_, value_offset_;
};

}  // namespace kvfuse
