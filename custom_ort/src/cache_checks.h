// Rules about caches and their quantisation that several operators have, under numbers of their own.
#pragma once

#include "context.h"
#include "declaration.h"

namespace kvfuse {

// Refuses an offset without its scale.
void CheckOffsetHasScale(const Constraint& constraint, const Tensor& scale, const Tensor& offset);

// Whether a cache of float type `type` keeps rows of type `plain`: their own type, for float32 any float. And which do.
bool Keeps(int type, int plain);
std::string KeptText(int plain);

// Refuses a scale with a plain cache, and a cache without one that cannot keep rows of type `plain`.
void CheckScaleFitsCache(const Constraint& constraint, const Tensor& cache, const Tensor& scale, int plain);

// Refuses a scale that divides and has an element that is 0 or not finite.
void CheckDivides(const Constraint& constraint, const Tensor& scale);

// Refuses a given tensor of another shape.
void CheckShape(const Constraint& constraint, const Tensor& tensor, std::initializer_list<int64_t> shape);

// Refuses a given tensor without elements.
void CheckNotEmpty(const Constraint& constraint, const Tensor& tensor);

}  // namespace kvfuse
