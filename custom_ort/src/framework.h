// An operator is one file in kernels/: a class derived from Kernel, and a Registered<...> object of it.
//
//   class MyKernel final : public Kernel {
//    public:
//     explicit MyKernel(const KernelInfo& info);           // attributes, constant inputs; may throw Refusal
//     void Run(KernelContext& context) const override;     // may throw Refusal, before it writes anything
//     static void InferShapes(ShapeContext& context);      // outputs that share no input's buffer
//   };
//   const Registered<my_op::kDeclaration, MyKernel> kRegistered;
//
// The declaration is the generated header's. The rest - one OrtCustomOp for each type combination, the in-place map,
// statuses with operator and node name - is made here.
#pragma once

#include <cstdlib>
#include <memory>

#include "context.h"
#include "declaration.h"

namespace kvfuse {

// A kernel of one node. Runs may overlap: no state changes after construction.
class Kernel {
 public:
  Kernel() = default;
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;
  virtual ~Kernel() = default;
  virtual void Run(KernelContext& context) const = 0;
};

struct Operator {
  const Declaration* declaration;
  std::unique_ptr<Kernel> (*create)(const KernelInfo&);
  void (*infer)(ShapeContext&);
  size_t (*may_inplace)(int** inputs, int** outputs);
};

void RegisterOperator(const Operator& entry);

// Which outputs may take over which input's buffer. The runtime gives this callback no operator: one function each.
// The arrays are freed by the release callback.
template <const Declaration& kDeclaration>
size_t MayInplace(int** inputs, int** outputs) {
  size_t count = 0;
  for (const OutputDecl& output : kDeclaration.outputs) count += output.ref_input >= 0 ? 1 : 0;
  if (count == 0) return 0;
  *inputs = static_cast<int*>(std::malloc(count * sizeof(int)));
  *outputs = static_cast<int*>(std::malloc(count * sizeof(int)));
  if (*inputs == nullptr || *outputs == nullptr) return 0;
  size_t filled = 0;
  for (size_t i = 0; i < kDeclaration.outputs.size; ++i) {
    if (kDeclaration.outputs[i].ref_input < 0) continue;
    (*inputs)[filled] = kDeclaration.outputs[i].ref_input;
    (*outputs)[filled++] = static_cast<int>(i);
  }
  return count;
}

template <const Declaration& kDeclaration, typename KernelClass>
struct Registered {
  Registered() {
    RegisterOperator(
        {&kDeclaration,
         [](const KernelInfo& info) -> std::unique_ptr<Kernel> { return std::make_unique<KernelClass>(info); },
         &KernelClass::InferShapes, &MayInplace<kDeclaration>});
  }
};

}  // namespace kvfuse
