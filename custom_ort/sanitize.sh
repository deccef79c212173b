#!/usr/bin/env bash
# Runs Python with a library built with AddressSanitizer and UndefinedBehaviorSanitizer: the kernel tests for
# `make sanitize`, hostile calls for `make fuzz`.
#
#   custom_ort/sanitize.sh PYTHON-ARGUMENTS      PYTHON=.venv/bin/python  CXX=g++  BUILD=build/sanitize
#
# Python itself is not instrumented: the sanitiser's runtime is preloaded, and leaks are not looked for (interpreters
# keep memory). What is too large to allocate is a MemoryError, as without the sanitiser.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
build=${BUILD:-build/sanitize}
compiler=${CXX:-c++}

"$python" -m cmake --version >/dev/null 2>&1 && cmake=("$python" -m cmake) || cmake=(cmake)
"${cmake[@]}" -S custom_ort -B "$build" -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_CXX_COMPILER="$compiler" \
  -DKVFUSE_SANITIZE=ON -DKVFUSE_WERROR=ON
"${cmake[@]}" --build "$build" --parallel 2

export KVFUSE_LIBRARY="$PWD/$build/libkvfuse_ort.so"
export ASAN_OPTIONS=detect_leaks=0:abort_on_error=1:detect_stack_use_after_return=1:allocator_may_return_null=1
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
# libstdc++ comes too: the runtime must find the real __cxa_throw before anything throws.
preload="$("$compiler" -print-file-name=libasan.so) $("$compiler" -print-file-name=libstdc++.so.6)"

# A run that does not use the sanitised library proves nothing.
LD_PRELOAD=$preload "$python" - <<'CHECK'
import custom_ort, onnxruntime
options = onnxruntime.SessionOptions()  # the library goes when the last options and session go
custom_ort.register(options)
maps = open("/proc/self/maps").read()
assert "libasan" in maps and str(custom_ort.get_library_path()) in maps, "the sanitised library is not in use"
CHECK

LD_PRELOAD=$preload exec "$python" "$@"
