// The form of the headers in generated/: an operator's signature, taken from its Python declaration.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvfuse {

template <typename T>
struct View {
  const T* data = nullptr;
  size_t size = 0;

  constexpr View() = default;
  template <size_t N>
  constexpr View(const T (&array)[N]) : data(array), size(N) {}  // NOLINT: implicit, for tables
  constexpr const T& operator[](size_t i) const { return data[i]; }
  constexpr const T* begin() const { return data; }
  constexpr const T* end() const { return data + size; }
};

struct InputDecl {
  const char* name;
  bool optional;
  int ref_output;  // the output that shares its buffer, or -1
};

struct OutputDecl {
  const char* name;
  int ref_input;   // the input whose buffer it shares, or -1
  int type_input;  // the first input that has its element type, or -1
  int type = 0;    // its element type where that is always the same and no input has it
};

enum class AttrType { kFloat, kInt, kBool, kString, kInts };

struct AttrDecl {
  const char* name;
  AttrType type;
  double number;  // default of Float, Int and Bool
  const char* text;
  View<const char*> allowed;  // of a String; empty: anything
};

// A numbered rule of the contract that binds `generic`. Its text is the one that the Python check uses.
struct Constraint {
  const char* id;
  const char* text;
};

struct Declaration {
  const char* name;
  View<InputDecl> inputs;
  View<OutputDecl> outputs;
  View<AttrDecl> attrs;
  // Rows of inputs.size + outputs.size element types: the combinations that the operator takes.
  const int8_t* types;
  size_t combinations;

  constexpr size_t ports() const { return inputs.size + outputs.size; }
};

}  // namespace kvfuse
