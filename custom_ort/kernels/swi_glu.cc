// SwiGlu on the CPU: a * sigmoid(a) * b for the halves a, b of x along one axis, in fp32, rounded once.

#include "generated/swi_glu.h"

#include "activation.h"
#include "blocks.h"
#include "framework.h"

namespace kvfuse {
namespace swi_glu {
namespace {

constexpr size_t kPiece = 1024;  // elements that a task takes at a time

class SwiGlu final : public Kernel {
 public:
  explicit SwiGlu(const KernelInfo& info) : kernels_(SelectRowKernels()), dim_(info.Int(kAttrDim)) {}
  void Run(KernelContext& context) const override;
  static void InferShapes(ShapeContext& context);

 private:
  const RowKernels& kernels_;
  int64_t dim_;
};

void SwiGlu::Run(KernelContext& context) const {
  const Tensor x = context.Input(kInX);
  const int64_t rank = static_cast<int64_t>(x.rank);
  if (rank < 1) Refuse(kSg1, Found(x), "1 to 8 dims");
  if (dim_ < -rank || dim_ >= rank) Refuse(kSg1B, "dim " + Text(dim_), "an axis of x " + x.ShapeText());
  const size_t axis = static_cast<size_t>(dim_ < 0 ? dim_ + rank : dim_);
  int64_t dims[kMaxRank];
  std::copy(x.dims, x.dims + x.rank, dims);
  if (dims[axis] % 2 != 0) Refuse(kSg1C, "dim " + Text(dim_) + " of size " + Text(dims[axis]), "an even size");
  dims[axis] /= 2;
  char* out = static_cast<char*>(context.Output(kOutY, dims, x.rank));
  if (out == nullptr || x.elements == 0) return;

  // For every index before the axis, a is one run of elements and b the next.
  const size_t run = Product(dims, axis, x.rank), size = ElementSize(x.type), pieces = (run + kPiece - 1) / kPiece;
  const FloatKind kind = KindOf(x.type);
  context.ForRows(Product(dims, 0, axis) * pieces, [&](size_t begin, size_t end) {
    alignas(64) float gate[kPiece];
    alignas(64) float up[kPiece];
    for (size_t i = begin; i < end; ++i) {
      const size_t outer = i / pieces, start = i % pieces * kPiece, count = std::min(kPiece, run - start);
      const char* source = x.As<char>() + (2 * outer * run + start) * size;
      kernels_.load[kind](source, count, gate);
      kernels_.load[kind](source + run * size, count, up);
      for (size_t j = 0; j < count; ++j) gate[j] = Silu(gate[j]) * up[j];
      kernels_.store[kind](gate, count, {out + (outer * run + start) * size, count, count});
    }
  });
}

void SwiGlu::InferShapes(ShapeContext& context) {
  std::vector<InferredDim> x;
  if (!context.Dims(kInX, &x)) return;
  const int64_t rank = static_cast<int64_t>(x.size()), dim = context.Int(kAttrDim);
  if (dim < -rank || dim >= rank) return;
  InferredDim& split = x[static_cast<size_t>(dim < 0 ? dim + rank : dim)];
  split = {split.size < 0 ? -1 : split.size / 2, ""};
  context.SetOutput(kOutY, x);
}

const Registered<kDeclaration, SwiGlu> kRegistered;

}  // namespace
}  // namespace swi_glu
}  // namespace kvfuse
