// How the library says no. A Refusal is thrown anywhere below the ABI boundary and becomes an INVALID_ARGUMENT status
// there, with operator and node in front.
#pragma once

#include <exception>
#include <string>
#include <utility>

#include "declaration.h"

struct OrtStatus;

namespace kvfuse {

class Refusal : public std::exception {
 public:
  explicit Refusal(std::string text) : text_(std::move(text)) {}
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  std::string text_;
};

// A status that the runtime gave back to us, to be handed on.
struct RuntimeFailure {
  OrtStatus* status;
};

[[noreturn]] inline void Refuse(const Constraint& constraint, const std::string& found, const std::string& wanted) {
  throw Refusal(std::string(constraint.id) + ": " + constraint.text + "; found " + found + ", wanted " + wanted);
}

inline std::string Text(int64_t number) { return std::to_string(number); }

inline std::string Join(View<const char*> words) {
  std::string text;
  for (const char* word : words) text += (text.empty() ? "" : " | ") + std::string(word);
  return text;
}

}  // namespace kvfuse
