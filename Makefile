# A small front for CMake; `make help` lists the targets. Variables: BUILD (folder), PREFIX and DESTDIR (install),
# JOBS (compilers at once), CMAKE_ARGS (more options for the configuration), FUZZ_RUNS, ORACLE and PYTHON_ENV (Python
# environments), RELEASE=1 (a wheel for glibc 2.28 and newer).
BUILD      ?= build
PREFIX     ?= /usr/local
JOBS       ?= $(shell nproc 2>/dev/null || echo 2)
CMAKE_ARGS ?=
FUZZ_RUNS  ?= 100000
ORACLE     ?= build/oracle
PYTHON_ENV ?= build/python
RELEASE    ?=
CTEST       = ctest --output-on-failure --no-label-summary -j2
ARM_ROOT    = $(BUILD)/aarch64-root
DEBUG       = -DCMAKE_BUILD_TYPE=Debug -DNIBBLE_BENCH=OFF -DNIBBLE_INSTALL=OFF $(CMAKE_ARGS)

MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := all
.PHONY: all setup configure demo tiny-model test test-fast bench bench-gemm fuzz sanitize asan tsan oracle wheel test-python test-python-matrix install aarch64 test-aarch64 format format-check \
        clean distclean help

all: configure ## build the command and the libraries into build/
	cmake --build $(BUILD) --parallel $(JOBS)

setup:
	@scripts/setup build test

configure: setup
	@cmake -S . -B $(BUILD) -DCMAKE_INSTALL_PREFIX="$(PREFIX)" $(CMAKE_ARGS)

demo: configure ## fine-tune the small model that comes along, interrupt and resume it, ask it, merge it
	cmake --build $(BUILD) --parallel $(JOBS) --target nibble ask_chats
	@scripts/demo $(BUILD)

tiny-model: configure ## train models/nibble-tiny anew from random weights: minutes
	scripts/make-tiny-model $(BUILD)

test: all ## run all tests that need neither Python nor a network
	$(CTEST) --test-dir $(BUILD)

test-fast: all ## the same without the slow ones: under a minute
	$(CTEST) --test-dir $(BUILD) -L fast

bench: all ## measure, with the protocol and the yardsticks in the same run
	bench/run $(BUILD) $(ORACLE)

bench-gemm: ## measure the product behind the linear layers beside OpenBLAS
	@scripts/setup build test bench
	@cmake -S . -B $(BUILD) $(CMAKE_ARGS)
	cmake --build $(BUILD) --parallel $(JOBS) --target nibble-bench-gemm
	$(BUILD)/nibble-bench-gemm

sanitize: asan tsan ## run the tests under AddressSanitizer + UBSan, then under ThreadSanitizer

# Not with detect_stack_use_after_return: gcc 12 then aligns 64-byte vectors on the stack to 32 bytes, and crashes.
asan: setup
	cmake -S . -B $(BUILD)/asan $(DEBUG) -DNIBBLE_SANITIZE=address,undefined,float-cast-overflow
	cmake --build $(BUILD)/asan --parallel $(JOBS)
	UBSAN_OPTIONS=print_stacktrace=1 $(CTEST) --test-dir $(BUILD)/asan

# The tour goes through every parallel loop of the commands, with four threads.
tsan: setup
	cmake -S . -B $(BUILD)/tsan $(DEBUG) -DNIBBLE_SANITIZE=thread
	cmake --build $(BUILD)/tsan --parallel $(JOBS)
	$(CTEST) --test-dir $(BUILD)/tsan -L unit
	tests/tour.sh $(BUILD)/tsan --threads 4 >/dev/null

# The sources once more as another architecture's compiler and processor see them: char is unsigned, memory is ordered weakly,
# only scalar kernels exist. What has one answer is compared with the command of this machine.
aarch64: setup ## build for aarch64 into build/aarch64, without CUDA
	@scripts/setup aarch64
	scripts/aarch64-root $(ARM_ROOT)
	cmake --no-warn-unused-cli -S . -B $(BUILD)/aarch64 --toolchain cmake/aarch64.cmake -DNIBBLE_AARCH64_ROOT="$(abspath $(ARM_ROOT))" \
	  -DNIBBLE_CUDA=off -DNIBBLE_INSTALL=OFF
	cmake --build $(BUILD)/aarch64 --parallel $(JOBS)

test-aarch64: all aarch64 ## run a part of the tests for aarch64 in qemu's user mode: minutes
	$(CTEST) --test-dir $(BUILD)/aarch64 -L emulated
	tests/aarch64_test.sh . $(BUILD)/nibble $(BUILD)/aarch64/nibble qemu-aarch64-static -L "$(abspath $(ARM_ROOT))"

fuzz: ## run every fuzz target for FUZZ_RUNS inputs (clang, libFuzzer, ASan + UBSan)
	@scripts/setup build fuzz
	cmake -S . -B $(BUILD)/fuzz $(DEBUG) -DCMAKE_C_COMPILER=clang -DNIBBLE_FUZZ=ON -DNIBBLE_TESTS=OFF \
	  -DNIBBLE_SANITIZE=address,undefined
	cmake --build $(BUILD)/fuzz --parallel $(JOBS) --target fuzzers
	scripts/fuzz $(BUILD)/fuzz $(FUZZ_RUNS)

oracle: configure ## compare with the real upstream libraries, in a Python environment under build/
	cmake --build $(BUILD) --parallel $(JOBS) --target nibble nibble-ops readers
	tests/run_oracle $(BUILD) $(ORACLE)

wheel: configure ## make the wheel nibble-torch (PyTorch) in build/wheel; RELEASE=1: for glibc 2.28 and newer
	@CMAKE_ARGS="$(CMAKE_ARGS)" JOBS=$(JOBS) scripts/make-wheel $(BUILD) $(if $(RELEASE),release)

test-python: wheel ## install the wheel in a Python environment under build/, run python/tests against it
	@scripts/test-python $(BUILD) $(PYTHON_ENV)

test-python-matrix: wheel ## the quick ones of them with each Python found and with torch 2.9, 2.11 and the newest
	@scripts/test-python-matrix $(BUILD)

install: all ## install into PREFIX (default /usr/local), below DESTDIR if given
	DESTDIR="$(DESTDIR)" cmake --install $(BUILD)

format: ## format all C files of the repository
	@scripts/setup format
	git ls-files -z '*.c' '*.h' | xargs -0 clang-format -i

format-check: ## fail if a C file is not formatted
	@scripts/setup format
	git ls-files -z '*.c' '*.h' | xargs -0 clang-format --dry-run -Werror

clean: ## remove what was built; keeps the Python environments build/oracle and build/python
	@if [ -d $(BUILD) ]; then find $(BUILD) -mindepth 1 -maxdepth 1 ! -name oracle ! -name python -exec rm -rf {} +; fi

distclean: ## remove build/ altogether
	rm -rf $(BUILD)

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-19s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
