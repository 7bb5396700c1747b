# Trireme. `make help` lists the targets.
PRESET ?= release
BUILD  := $(if $(filter release,$(PRESET)),build,build-$(PRESET))

.DEFAULT_GOAL := help
.PHONY: help setup setup-test build build-all train test unit check locks asan tsan bench format tidy install clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' Makefile

setup: ## install the Debian packages that training needs
	@scripts/setup

setup-test: # and those of the tests
	@scripts/setup --test

# A new folder that nobody develops in is compiled the quick way, a folder of the sources at a time. Once chosen, that
# stays: `make test` goes on where `make train` stopped. `cmake --preset release -DTRIREME_UNITY=OFF` is for editing.
at_first = $(if $(filter release,$(PRESET)),-DTRIREME_UNITY=ON)
configure = cmake --preset $(PRESET) $(if $(wildcard $(BUILD)/build.ninja),>/dev/null,$(at_first))

build: setup ## build the library and the command, build/trireme
	@$(configure)
	@cmake --build $(BUILD) --target trireme_command trireme_worker

build-all: setup-test # and the tests
	@$(configure)
	@cmake --build $(BUILD)

train: build ## train LeNet on Fashion-MNIST on two workers
	@build/trireme train recipes/lenet.toml

test: build-all check ## install what tests need, build everything, run all tests
	@scripts/csv_files $(BUILD)/csv_files
	@scripts/run_tests $(BUILD)

unit: build-all ## the quick tests only
	@cd $(BUILD) && ctest --output-on-failure -L unit

check: ## folder rules: who may include whom; the width of lines
	@scripts/check_includes.py
	@scripts/check_lines.py

locks: setup-test ## clang checks that fields are used under their lock
	@scripts/check_locks

asan: setup-test ## tests under AddressSanitizer and UBSan
	@scripts/sanitize asan

tsan: setup-test ## tests under ThreadSanitizer
	@scripts/sanitize tsan

bench: build ## ours and the peers alternately; one JSON object a line
	@scripts/setup --bench
	@build/trireme bench allreduce
	@build/trireme bench train

format: ## clang-format all sources
	@git ls-files '*.cpp' '*.h' | xargs clang-format -i

tidy: build-all ## clang-tidy on all sources, or on those in FOLDERS="..."
	@scripts/tidy $(BUILD) $(FOLDERS)

install: build ## install to PREFIX (default /usr/local)
	@cmake --install $(BUILD) --prefix $(or $(PREFIX),/usr/local)

clean: ## remove build folders
	@rm -rf build build-*
