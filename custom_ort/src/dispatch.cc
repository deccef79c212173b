// Which row kernels run on this CPU.

#include <cstdlib>

#include "attention.h"
#include "refusal.h"
#include "rows.h"

namespace kvfuse {
namespace {

bool Always() { return true; }

#if defined(__x86_64__)
bool HasAvx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}
bool HasAvx512() {
  return HasAvx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
bool HasAvx512Bf16() {
  return HasAvx512() && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
}
bool HasAmx() {
  return HasAvx512Bf16() && __builtin_cpu_supports("amx-bf16") && __builtin_cpu_supports("amx-int8") && AskForTiles();
}
#else
bool Never() { return false; }
constexpr auto HasAvx2 = Never, HasAvx512 = Never, HasAvx512Bf16 = Never, HasAmx = Never;
#endif

}  // namespace

const std::vector<Isa>& Isas() {
  static const std::vector<Isa> isas = {
      {"portable", PortableRowKernels(), PortableGemmKernels(), PortableAttentionKernels(), Always},
      {"avx2", Avx2RowKernels(), Avx2GemmKernels(), Avx2AttentionKernels(), HasAvx2},
      {"avx512", Avx512RowKernels(), Avx512GemmKernels(), Avx512AttentionKernels(), HasAvx512},
      {"avx512bf16", Avx512Bf16RowKernels(), Avx512Bf16GemmKernels(), Avx512AttentionKernels(), HasAvx512Bf16},
      {"amx", Avx512Bf16RowKernels(), AmxGemmKernels(), Avx512AttentionKernels(), HasAmx},
  };
  return isas;
}

namespace {

const Isa& Select() {
  const char* forced = std::getenv("KVFUSE_ISA");
  const bool any = forced == nullptr || *forced == '\0';
  const Isa* best = nullptr;
  std::string runnable;
  for (const Isa& isa : Isas()) {
    if (isa.kernels == nullptr || !isa.supported()) continue;
    runnable += (runnable.empty() ? "" : " | ") + std::string(isa.name);
    if (any || std::string(forced) == isa.name) best = &isa;
  }
  if (best == nullptr) throw Refusal(std::string("KVFUSE_ISA=") + forced + " cannot run here; wanted " + runnable);
  return *best;
}

}  // namespace

const RowKernels& SelectRowKernels() { return *Select().kernels; }
const GemmKernels& SelectGemmKernels() { return *Select().products; }
const AttentionKernels& SelectAttentionKernels() { return *Select().attention; }

}  // namespace kvfuse
