# kvfuse: everything a contributor runs. Needs a C++17 compiler, make and python3; the rest comes from PyPI into .venv.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
OUT    ?= out/demo
JOBS   ?= 2

CXX_SOURCES = $(shell find custom_ort -name '*.cc' -o -name '*.h' -o -name '*.inc' -o -name '*.map' -o -name CMakeLists.txt)
CXX_STYLE   = $(filter %.cc %.h %.inc,$(CXX_SOURCES)) $(wildcard tests/custom_ort/*.cc)
# An editable install knows the packages that existed when it was made: a new one needs another.
PACKAGES    = $(shell find ir_ops fusion custom_ort models benchmarks -name __init__.py)

.PHONY: demo test lint format bench thorough metamorphic sanitize fuzz soak compat docs install clean
.DEFAULT_GOAL := demo

demo: $(VENV)/.installed ## fuse, verify, run and export the shipped DeepSeek-V3 layer
	$(BIN)/kvfuse demo --out $(OUT)

test: lint ## style, types, then all tests
	$(BIN)/python -m pytest -q -n $(JOBS)

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run -Werror $(CXX_STYLE)

format: $(VENV)/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CXX_STYLE)

bench: $(VENV)/.installed
	$(BIN)/kvfuse bench

CASES ?= 5000
thorough: $(VENV)/.installed ## kernel and reference compared on CASES random calls of every operator
	KVFUSE_CASES=$(CASES) $(BIN)/python -m pytest -q -n $(JOBS) tests/custom_ort -k test_random_calls

COUNT ?= 100000
SEED  ?= 1
metamorphic: $(VENV)/.installed ## COUNT random edits that keep the meaning of graphs, and COUNT that break it
	$(BIN)/python -m tests.fusion.metamorphic --count $(COUNT) --seed $(SEED) --jobs $(JOBS)

# test_abi and the soak are left out: they measure memory that the sanitiser holds back.
sanitize: $(VENV)/.installed ## the kernel tests under AddressSanitizer and UndefinedBehaviorSanitizer
	KVFUSE_CASES=100 PYTHON=$(BIN)/python custom_ort/sanitize.sh -m pytest -q -p no:cacheprovider -n $(JOBS) \
	  tests/custom_ort --deselect tests/custom_ort/test_abi.py \
	  --deselect tests/custom_ort/decode/test_hostile_calls.py::test_a_short_soak

MINUTES ?= 10
fuzz: $(VENV)/.installed ## hostile calls at the entry of every kernel, under the same sanitisers
	PYTHON=$(BIN)/python custom_ort/sanitize.sh -m tests.custom_ort.fuzz --minutes $(MINUTES) --jobs $(JOBS)

OPERATIONS ?= 12000
soak: $(VENV)/.installed ## random prefills, steps, forks and frees on 64 sequences: logits as the formula's, memory flat
	$(BIN)/python -m tests.custom_ort.decode.soak $(OPERATIONS)

RUNTIMES ?= 1.20.1 1.23.2
TORCH_NPU ?= 2.14.0
compat: $(VENV)/.installed ## the kernel tests on older runtimes; GE files against the definition in a torch-npu wheel
	test -n "$$(ls out/wheels/torch_npu-$(TORCH_NPU)-*.whl 2>/dev/null)" || $(BIN)/python -m pip download -q --no-deps \
	  --only-binary :all: --python-version 3.11 --platform manylinux_2_28_x86_64 -d out/wheels torch-npu==$(TORCH_NPU)
	KVFUSE_TORCH_NPU=$$(ls out/wheels/torch_npu-$(TORCH_NPU)-*.whl) \
	  $(BIN)/python -m pytest -q tests/ir_ops/ge/test_independent_definition.py
	for version in $(RUNTIMES); do \
	  test -x $(VENV)-$$version/bin/python || $(PYTHON) -m venv $(VENV)-$$version; \
	  $(VENV)-$$version/bin/python -m pip install -q --disable-pip-version-check "onnxruntime==$$version" \
	    "numpy<2" onnx onnx-ir ml_dtypes pytest pytest-xdist hypothesis && \
	  KVFUSE_CASES=60 PYTHONPATH=. KVFUSE_LIBRARY=$$($(BIN)/python -c 'import custom_ort; print(custom_ort.get_library_path())') \
	    $(VENV)-$$version/bin/python -m pytest -q -n $(JOBS) tests/custom_ort || exit 1; \
	done

docs: $(VENV)/.installed ## what is generated from the declarations: operator pages, kernel headers
	$(BIN)/python -m ir_ops.docs_page
	$(BIN)/python -m ir_ops.codegen

install: $(VENV)/.installed

# The environment: tools first, then kvfuse itself in editable form (Python changes are live, C++ changes rebuild).
$(VENV)/.tools: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check --upgrade pip scikit-build-core cmake ninja
	touch $@

$(VENV)/.installed: $(VENV)/.tools $(CXX_SOURCES) $(PACKAGES)
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-build-isolation --editable '.[dev]'
	touch $@

clean:
	rm -rf build dist out .pytest_cache .mypy_cache .ruff_cache
