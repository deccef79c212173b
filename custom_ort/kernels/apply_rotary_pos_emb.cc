// ApplyRotaryPosEmb on the CPU: query and key rotated in place by one pair of cos and sin.

#include "generated/apply_rotary_pos_emb.h"

#include "blocks.h"
#include "framework.h"
#include "rotation.h"

namespace kvfuse {
namespace apply_rotary_pos_emb {
namespace {

struct Layout {
  const char* text;
  size_t rank, heads, batch;  // axes; no batch: the rank
};
constexpr Layout kLayouts[] = {
    {"[B, S, N, D]", 4, 2, 0}, {"[S, B, N, D]", 4, 2, 1}, {"[B, N, S, D]", 4, 1, 0}, {"[T, N, D]", 3, 1, 3}};

class ApplyRotaryPosEmb final : public Kernel {
 public:
  explicit ApplyRotaryPosEmb(const KernelInfo& info);
  void Run(KernelContext& context) const override;
  static void InferShapes(ShapeContext&) {}  // both outputs share an input's buffer

 private:
  void Check(const Tensor& query, const Tensor& key, const Tensor& cos, const Tensor& sin) const;

  const RowKernels& kernels_;
  int64_t layout_;
  Rotary mode_ = Rotary::kHalf;
};

ApplyRotaryPosEmb::ApplyRotaryPosEmb(const KernelInfo& info)
    : kernels_(SelectRowKernels()), layout_(info.Int(kAttrLayout)) {
  if (layout_ < 1 || layout_ > 4) Refuse(kAr5, "layout " + Text(layout_), "1 | 2 | 3 | 4");
  std::string found;
  const int mode = info.Choice(kAttrRotaryMode, &found);
  if (mode < 0) Refuse(kAr6, "rotary_mode '" + found + "'", Join(kRotaryModeValues));
  static_assert(kRotaryMode_half == 0 && kRotaryMode_interleave == 1 && kRotaryMode_quarter == 2);
  mode_ = static_cast<Rotary>(mode);
}

void ApplyRotaryPosEmb::Check(const Tensor& query, const Tensor& key, const Tensor& cos, const Tensor& sin) const {
  const Layout& layout = kLayouts[layout_ - 1];
  for (const Tensor* rows : {&query, &key}) {
    if (rows->rank != layout.rank) Refuse(kAr1B, Found(*rows), layout.text + (" in layout " + Text(layout_)));
  }
  bool fits = cos.rank == layout.rank;
  for (size_t axis = 0; axis < layout.rank; ++axis) {
    if (axis != layout.heads && query.dims[axis] != key.dims[axis]) {
      Refuse(kAr1C, Found(key), "that of query " + query.ShapeText() + " but for the heads");
    }
    if (!fits || axis + 1 == layout.rank) continue;
    const bool may_be_one = axis == layout.heads || axis == layout.batch;
    fits = (may_be_one && cos.dims[axis] == 1) || (axis != layout.heads && cos.dims[axis] == query.dims[axis]);
  }
  if (!fits) {
    Refuse(kAr2, Found(cos), "one head, and the rows of query " + query.ShapeText() + " in layout " + Text(layout_));
  }
  if (!SameShape(sin, cos)) Refuse(kAr2B, Found(sin), "the shape of cos " + cos.ShapeText());
  const int64_t width = cos.Back(0);
  if (width > query.Back(0)) Refuse(kAr2C, "width " + Text(width), "at most D = " + Text(query.Back(0)));
  if (width % 2 != 0) Refuse(kAr2D, "width " + Text(width), "a multiple of 2");
  if (mode_ == Rotary::kQuarter && width % 4 != 0) Refuse(kAr2E, "width " + Text(width), "a multiple of 4");
}

void ApplyRotaryPosEmb::Run(KernelContext& context) const {
  const Tensor query = context.Input(kInQuery), key = context.Input(kInKey);
  const Tensor cos = context.Input(kInCos), sin = context.Input(kInSin);
  Check(query, key, cos, sin);
  const Rotation rotations[] = {{kernels_, mode_, query, cos, sin}, {kernels_, mode_, key, cos, sin}};
  char* const out[] = {static_cast<char*>(context.Output(kOutQuery, query.dims, query.rank)),
                       static_cast<char*>(context.Output(kOutKey, key.dims, key.rank))};
  const size_t first = rotations[0].rows();
  context.ForRows(first + rotations[1].rows(), [&](size_t begin, size_t end) {
    if (begin < first) rotations[0].Run(out[0], begin, std::min(end, first));
    if (end > first) rotations[1].Run(out[1], begin > first ? begin - first : 0, end - first);
  });
}

const Registered<kDeclaration, ApplyRotaryPosEmb> kRegistered;

}  // namespace
}  // namespace apply_rotary_pos_emb
}  // namespace kvfuse
