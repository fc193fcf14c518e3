# The short way in. Everything is built by CMake and Ninja, out of tree, in build/.
#
#   make            build the library, the command (build/epigrad), the examples and the tests
#   make demo       train a network to read handwritten digits  (BACKEND=cpu DEMO="--dtype bf16")
#   make check      run every test
#   make install    install library, header and command         (PREFIX=/usr/local DESTDIR=)
#   make web        build the page that trains in a browser, in build/web (serve it: python3 -m http.server -d build/web)
#   make bench      epigrad beside the libraries found here     (BENCH="--full"; with BACKEND=cuda or webgpu: `epigrad bench`)
#   make format     let clang-format lay out the source; make format-check only looks
#   make tidy       run clang-tidy over the source
#   make clean      remove the build folders
#
# On Debian the packages that are missing are installed first (tools/setup.sh).

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := all
.NOTPARALLEL: # Ninja is parallel inside each step
.PHONY: all demo check ctest pytest fuzz web webtest install bench clean format format-check tidy

BUILD         ?= build
PREFIX        ?= /usr/local
BACKEND       ?= cpu
DEMO          ?=
BENCH         ?=
CMAKE_OPTIONS ?=
FUZZ_SECONDS  ?= 10
VENV          := $(BUILD)/venv

all: setup-build $(BUILD)/build.ninja
	@cmake --build $(BUILD)

setup-%:
	@tools/setup.sh $*

# Once: Ninja configures anew by itself when a CMakeLists.txt has changed.
$(BUILD)/build.ninja:
	@cmake -S . -B $(BUILD) -G Ninja $(CMAKE_OPTIONS) >/dev/null

demo: setup-build $(BUILD)/build.ninja
	@cmake --build $(BUILD) --target digits
	@[[ $(BACKEND) != webgpu ]] || { tools/setup.sh webgpu && tools/fetch-webgpu.sh $(BUILD)/webgpu >/dev/null; }
	@$(BUILD)/examples/digits --backend $(BACKEND) $(DEMO)

# On the CPU in minutes, beside other libraries (bench/cpu); results in build/compare-cpu.*.
ifeq ($(BACKEND),cpu)
bench: setup-bench all $(BUILD)/bench-venv/ready
	@cmake -S bench/cpu -B $(BUILD)/bench -G Ninja -DEPIGRAD_LIBRARY=$(abspath $(BUILD))/src/libepigrad.so >/dev/null
	@cmake --build $(BUILD)/bench
	@$(BUILD)/bench-venv/bin/python bench/cpu/compare.py $(BUILD)/bench --output $(BUILD)/compare-cpu.jsonl $(BENCH)
else
bench: all
	@$(BUILD)/epigrad bench --backend $(BACKEND) $(BENCH)
endif

# MKL is a peer like the others: where it does not install, it is not found.
$(BUILD)/bench-venv/ready: bench/cpu/requirements.txt
	@python3 -m venv --clear $(@D)
	@$(@D)/bin/pip install -q --disable-pip-version-check -r $<
	@$(@D)/bin/pip install -q --disable-pip-version-check mkl || echo "bench: no MKL for this machine"
	@touch $@

install: all
	@cmake --install $(BUILD) --prefix $(PREFIX)

clean:
	rm -rf $(BUILD) $(BUILD)-*

# ---- Tests -----------------------------------------------------------------------------------------

check: setup-check ctest pytest fuzz webtest
	@echo "make check: everything passed"

# Two at a time: most of a test is the oracle, on one thread.
ctest: all
	@ctest --test-dir $(BUILD) --output-on-failure --parallel 2

# NODEVICE_SELECT: a Vulkan layer of Mesa's would print where there is no display, and the tests expect silence.
pytest: all $(VENV)/ready
	@NODEVICE_SELECT=1 EPIGRAD=$(abspath $(BUILD))/epigrad $(VENV)/bin/python -m pytest -q -p no:cacheprovider tests/cli

# A virtual environment with what the tests of the command need, made anew when the list has changed.
$(VENV)/ready: tests/cli/requirements.txt tests/web/requirements.txt
	@tools/setup.sh check
	@python3 -m venv --clear $(VENV)
	@$(VENV)/bin/pip install -q --disable-pip-version-check $(^:%=-r %)
	@touch $@

# The page: a build of its own, by clang for WebAssembly. Its tests drive Debian's Chromium.
web: setup-web
	@cmake -S web -B $(BUILD)/wasm -G Ninja -DEPIGRAD_PAGE=$(abspath $(BUILD))/web >/dev/null
	@cmake --build $(BUILD)/wasm

webtest: web $(VENV)/ready
	@EPIGRAD_PAGE=$(abspath $(BUILD))/web $(VENV)/bin/python -m pytest -q -p no:cacheprovider tests/web

# libFuzzer is clang's, and wants everything it reaches instrumented: a build folder of its own.
fuzz: setup-check
	@cmake -S . -B $(BUILD)-fuzz -G Ninja -DCMAKE_C_COMPILER=clang -DEPIGRAD_FUZZ=ON \
	    -DEPIGRAD_SANITIZE=fuzzer-no-link,address,undefined -DEPIGRAD_OPENMP=OFF -DEPIGRAD_CUDA=OFF \
	    -DEPIGRAD_EXAMPLES=OFF -DEPIGRAD_TESTS=OFF >/dev/null
	@cmake --build $(BUILD)-fuzz --target fuzz_safetensors fuzz_npy fuzz_descriptor
	@fuzz/run.sh $(BUILD)-fuzz $(FUZZ_SECONDS)

# ---- Source ----------------------------------------------------------------------------------------

SOURCES := git ls-files '*.c' '*.h' '*.cpp'
COMPILED = sed -n 's|^ *"file": "$(CURDIR)/\(.*\)",*$$|\1|p' $(BUILD)/compile_commands.json

format:
	@$(SOURCES) | xargs clang-format -i

format-check:
	@$(SOURCES) | xargs clang-format --dry-run -Werror
	@echo "format-check: passed"

tidy: all
	@$(COMPILED) | sort -u | grep -Fxf <($(SOURCES)) | xargs -P "$$(nproc)" -n 1 clang-tidy --quiet -p $(BUILD)
	@echo "tidy: passed"
