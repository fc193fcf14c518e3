# SPDX-License-Identifier: Apache-2.0
# The short way in. Everything is built by CMake and Ninja, out of tree, in build/.
#
#   make            build the library, the command (build/epigrad) and the examples
#   make demo       train a network to read handwritten digits  (BACKEND=cpu DEMO="--dtype bf16")
#   make demo-gpt   train a small language model, and let it write  (DEMO="--steps 100", or BACKEND=cuda)
#   make demo-distributed  the same digits by four processes under MPI, beside one  (RANKS=4)
#   make check      build and run every test                    (CHECK=short: each over a sample of its cases)
#   make check-python   the Python package with PyTorch and JAX, some gigabytes in ~/.cache/epigrad
#   make site       the documentation as a site, in build/site   (serve it: python3 -m http.server -d build/site)
#   make check-site the site, and its links, search and pages in a browser
#   make campaign   random calls beside the oracle, of a seed (BACKEND=cpu MINUTES=1 SEED=random)
#   make wheel      the Python package as a wheel, in build/dist      (CMAKE_OPTIONS="-DEPIGRAD_CUDA=OFF")
#   make wheel-aarch64   the same for 64-bit ARM, cross-built, and its tests under qemu-user, in build/dist-aarch64
#   make deb        the Debian packages, in build/debian; from a copy of the tree, looked over by lintian
#   make install    install library, header and command         (PREFIX=/usr/local DESTDIR=)
#   make web        build the page that trains in a browser, in build/web (serve it: python3 -m http.server -d build/web)
#   make bench      epigrad beside the libraries found here     (BENCH="--full"; with BACKEND=cuda or webgpu: `epigrad bench`)
#   make calibrate  fit the constants of estimated times to a recording  (BACKEND=cpu, cuda, webgpu)
#   make format     let clang-format lay out C, C++ and CUDA C; make format-check only looks
#   make lint       look over the Python (ruff), shell (shellcheck) and WGSL files
#   make tidy       run clang-tidy over the source
#   make clean      remove the build folders
#
# On Debian the packages that are missing are installed first (tools/setup.sh).

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := all
.NOTPARALLEL: # Ninja is parallel inside each step
.PHONY: all everything demo demo-gpt demo-distributed check check-python site check-site ctest pytest campaign fuzz campaign-files web webtest wheel wheel-aarch64 deb install bench calibrate clean format format-check lint tidy

BUILD         ?= build
PREFIX        ?= /usr/local
BACKEND       ?= cpu
DEMO          ?=
BENCH         ?=
CMAKE_OPTIONS ?=
CHECK         ?=
VENV          := $(BUILD)/venv

# CHECK=short leaves out no program: the long tables and the tests of the command are sampled, and the fuzzers run for
# a second each.
ifeq ($(CHECK),short)
FUZZ_SECONDS  ?= 1
export EPIGRAD_TEST_SHORT := 1
else ifeq ($(CHECK),)
FUZZ_SECONDS  ?= 10
else
$(error CHECK is "$(CHECK)"; expected short, or nothing)
endif

all: setup-build $(BUILD)/build.ninja
	@cmake --build $(BUILD) --target without_tests

everything: setup-build $(BUILD)/build.ninja
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

demo-gpt: setup-build $(BUILD)/build.ninja
	@cmake --build $(BUILD) --target gpt
	@$(BUILD)/examples/gpt --backend $(BACKEND) $(DEMO)

# The digits by four processes, and by one alone: the same loss. RANKS=4
RANKS ?= 4
demo-distributed: setup-build setup-mpi $(BUILD)/build.ninja
	@cmake -S . -B $(BUILD) -DEPIGRAD_MPI=ON >/dev/null
	@cmake --build $(BUILD) --target digits_mpi
	@tools/mpirun.sh mpirun $(RANKS) $(BUILD)/examples/digits_mpi $(DEMO)

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

# The recordings are made on the device, by bench/cuda/record.py, and record.c in bench/cpu and bench/webgpu. The
# tables go into calibration.def in src/cuda, src/cpu and src/webgpu.
RECORDING ?= bench/recorded/$(if $(filter webgpu,$(BACKEND)),webgpu-h200,cpu-xeon-amx).txt
DEVICE    ?= Xeon
ifeq ($(BACKEND),cpu)
calibrate: all $(BUILD)/bench-venv/ready
	@cmake --build $(BUILD) --target cpu_counts
	@$(BUILD)/bench-venv/bin/python tools/calibrate_cpu.py $(BUILD)/tests/cpu_counts $(RECORDING) --device "$(DEVICE)" --write
else ifeq ($(BACKEND),webgpu)
calibrate: all
	@cmake --build $(BUILD) --target webgpu_counts
	@python3 tools/calibrate_webgpu.py $(BUILD)/src/webgpu_counts $(RECORDING) --write
else
calibrate: all
	@test "$(BACKEND)" = cuda || { echo "calibrate: BACKEND is $(BACKEND); expected cpu, cuda or webgpu"; exit 1; }
	@cmake --build $(BUILD) --target cuda_estimate
	@python3 tools/calibrate.py $(BUILD)/src/libcuda_estimate.so --write
endif

# MKL is a peer like the others: where it does not install, it is not found.
$(BUILD)/bench-venv/ready: bench/cpu/requirements.txt
	@python3 -m venv --clear $(@D)
	@$(@D)/bin/pip install -q --disable-pip-version-check -r $<
	@$(@D)/bin/pip install -q --disable-pip-version-check mkl || echo "bench: no MKL for this machine"
	@touch $@

# One for every CPython and for systems from glibc 2.28 on. auditwheel refuses a library that needs more.
wheel: setup-build $(BUILD)/wheel-venv/ready
	@rm -rf $(BUILD)/dist
	@$(BUILD)/wheel-venv/bin/pip wheel -q --no-deps --disable-pip-version-check -w $(BUILD)/dist/plain . \
	    -C build-dir=$(abspath $(BUILD))/wheel $(patsubst -D%,-C cmake.define.%,$(CMAKE_OPTIONS))
	@PATH=$(abspath $(BUILD))/wheel-venv/bin:$$PATH auditwheel repair --plat manylinux_2_28_$$(uname -m) \
	    -w $(BUILD)/dist $(BUILD)/dist/plain/*.whl
	@ls -l $(BUILD)/dist/*.whl

wheel-aarch64: $(BUILD)/wheel-venv/ready
	@tools/setup.sh arm
	@tools/aarch64-wheel.sh $(BUILD)

$(BUILD)/wheel-venv/ready: python/wheel-requirements.txt
	@python3 -m venv --clear $(@D)
	@$(@D)/bin/pip install -q --disable-pip-version-check -r $<
	@touch $@

deb:
	@tools/setup.sh packages
	@tools/debian-packages.sh $(BUILD)

install: all
	@cmake --install $(BUILD) --prefix $(PREFIX)

clean:
	rm -rf $(BUILD) $(BUILD)-*

# ---- Tests -----------------------------------------------------------------------------------------

# The command's tests take one processor for a minute: they run beside what follows CTest's, and are printed after it.
BESIDE := $(BUILD)/check-pytest.log

check: setup-check ctest $(VENV)/ready
	@$(MAKE) --no-print-directory pytest >$(BESIDE) 2>&1 & pytest=$$!; \
	    rest=0; $(MAKE) --no-print-directory fuzz campaign-files webtest || rest=$$?; \
	    code=0; wait $$pytest || code=$$?; cat $(BESIDE); [[ $$rest -eq 0 && $$code -eq 0 ]]
	@echo "make check: everything passed"

# Two at a time: most of a test is the oracle, on one thread. EXCEPT: a regular expression of tests to leave out.
ctest: everything
	@ctest --test-dir $(BUILD) --output-on-failure --parallel 2 $(if $(EXCEPT),--exclude-regex '$(EXCEPT)')

# The package from the source tree, with what the build has made for it.
PACKAGE = EPIGRAD=$(abspath $(BUILD))/epigrad EPIGRAD_LIBRARY_DIR=$(abspath $(BUILD))/python PYTHONPATH=$(CURDIR)/python

pytest: all $(VENV)/ready
	@EPIGRAD=$(abspath $(BUILD))/epigrad $(VENV)/bin/python -m pytest -q -p no:cacheprovider tests/cli
	@$(PACKAGE) $(VENV)/bin/python -m pytest -q -p no:cacheprovider python/tests/numpy

# torch is large, so its environment outlives the build folder and the clone.
CACHED := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/epigrad/$(firstword $(shell sha256sum python/tests/requirements.txt))

check-python: all $(CACHED)/ready
	@$(PACKAGE) $(CACHED)/bin/python -m pytest -q -p no:cacheprovider python/tests

# The list is in its name: the time of the file, which is that of the clone, says nothing.
$(CACHED)/ready:
	@tools/setup.sh check
	@python3 -m venv --clear $(@D)
	@$(@D)/bin/pip install -q --disable-pip-version-check -r python/tests/requirements.txt
	@touch $@

# Warnings are errors. No part of the library is built for it.
site: $(BUILD)/site-venv/ready
	@rm -rf $(BUILD)/site
	@$(BUILD)/site-venv/bin/sphinx-build -q -n -W --keep-going -c docs/site -d $(BUILD)/site-doctrees . $(BUILD)/site
	@echo "site: $(BUILD)/site/index.html"

check-site: site
	@EPIGRAD_SITE=$(abspath $(BUILD))/site $(BUILD)/site-venv/bin/python -m pytest -q -p no:cacheprovider tests/site

# oneDNN's headers are for the blocks of its page. Its library is not needed, and not there for every machine.
$(BUILD)/site-venv/ready: docs/site/requirements.txt tests/web/requirements.txt tests/site/headers.txt
	@tools/setup.sh check
	@python3 -m venv --clear $(@D)
	@$(@D)/bin/pip install -q --disable-pip-version-check -r docs/site/requirements.txt -r tests/web/requirements.txt
	@$(@D)/bin/pip install -q --disable-pip-version-check --no-deps -r tests/site/headers.txt || \
	    echo "check-site: no oneDNN headers for this machine"
	@touch $@

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

# Whatever fails prints the line that repeats it (docs/reference/testing.md).
campaign: setup-check $(BUILD)/build.ninja
	@cmake --build $(BUILD) --target campaign
	@[[ $(BACKEND) != webgpu ]] || { tools/setup.sh webgpu && tools/fetch-webgpu.sh $(BUILD)/webgpu >/dev/null; }
	@$(BUILD)/tests/campaign/campaign --backend $(BACKEND) --seed $(or $(SEED),random) --minutes $(or $(MINUTES),1)

# libFuzzer is clang's, and wants everything it reaches instrumented: a build folder of its own.
fuzz: setup-check
	@cmake -S . -B $(BUILD)-fuzz -G Ninja -DCMAKE_C_COMPILER=clang -DEPIGRAD_FUZZ=ON \
	    -DEPIGRAD_SANITIZE=fuzzer-no-link,address,undefined -DEPIGRAD_CUDA=OFF \
	    -DEPIGRAD_EXAMPLES=OFF -DEPIGRAD_TESTS=OFF -DEPIGRAD_PORTABLE_KERNELS=ON >/dev/null
	@cmake --build $(BUILD)-fuzz --target fuzz_safetensors fuzz_npy fuzz_descriptor
	@fuzz/run.sh $(BUILD)-fuzz $(FUZZ_SECONDS)

# Broken files for the command, which the fuzzers' build has with sanitizers; by hand MINUTES=60 SEED=1.
campaign-files: fuzz all $(VENV)/ready
	@cmake --build $(BUILD)-fuzz --target epigrad_cli
	@$(VENV)/bin/python tests/campaign/files.py $(BUILD)-fuzz/epigrad --plain $(BUILD)/epigrad \
	    --minutes $(or $(MINUTES),0.5) --seed $(or $(SEED),0) --jobs "$$(nproc)"

# ---- Source ----------------------------------------------------------------------------------------

SOURCES := git ls-files '*.c' '*.h' '*.cpp'
FORMATTED := git ls-files '*.c' '*.h' '*.cpp' '*.cu' '*.cuh'
COMPILED = sed -n 's|^ *"file": "$(CURDIR)/\(.*\)",*$$|\1|p' $(BUILD)/compile_commands.json

format:
	@$(FORMATTED) | xargs clang-format -i

format-check:
	@$(FORMATTED) | xargs clang-format --dry-run -Werror
	@echo "format-check: passed"

# There is no formatter for WGSL on Debian: its lines are short, without tabs and nothing behind them.
lint: $(BUILD)/lint-venv/ready
	@git ls-files '*.py' | xargs $(BUILD)/lint-venv/bin/ruff check -q
	@git ls-files '*.sh' '*.bash' .ci/run debian/tests/program | xargs shellcheck --severity=warning
	@git ls-files '*.sh' '*.bash' .ci/run | while read -r file; do bash -n "$$file"; done
	@git ls-files '*.wgsl' | xargs awk 'length > 120 || /[ \t]$$/ || /\t/ \
	    { print FILENAME ":" FNR ": longer than 120, with a tab, or with blanks at its end"; bad = 1 } END { exit bad }'
	@! git ls-files '*.c' '*.h' '*.cpp' '*.cu' '*.cuh' '*.wgsl' '*.py' '*.sh' '*.cmake' '*CMakeLists.txt' Makefile \
	    '*.bash' '*.rs' 'bindings/*.toml' debian ':!debian/changelog' ':!debian/copyright' ':!debian/source/format' \
	    | xargs grep -L 'SPDX-License-Identifier: Apache-2.0' | sed 's/$$/: has no SPDX line/' | grep .
	@echo "lint: passed"

$(BUILD)/lint-venv/ready: tools/lint-requirements.txt
	@python3 -m venv --clear $(@D)
	@$(@D)/bin/pip install -q --disable-pip-version-check -r $<
	@touch $@

tidy: everything
	@$(COMPILED) | sort -u | grep -Fxf <($(SOURCES)) | xargs -P "$$(nproc)" -n 1 clang-tidy --quiet -p $(BUILD)
	@echo "tidy: passed"
