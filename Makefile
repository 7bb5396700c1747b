# Trireme. `make help` lists the targets.
PRESET ?= release
BUILD  := $(if $(filter release,$(PRESET)),build,build-$(PRESET))

.DEFAULT_GOAL := help
.PHONY: help setup build train test unit check asan tsan bench format tidy install clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' Makefile

setup: ## install the Debian packages that are missing
	@scripts/setup

build: setup ## build everything; the command is build/trireme
	@cmake --preset $(PRESET) $(if $(wildcard $(BUILD)/build.ninja),>/dev/null,)
	@cmake --build $(BUILD)

train: build ## train LeNet on Fashion-MNIST on two workers
	@build/trireme train recipes/lenet.toml

test: build check ## all tests
	@cd $(BUILD) && ctest --output-on-failure --timeout 300 -j 2

unit: build ## the quick tests only
	@cd $(BUILD) && ctest --output-on-failure -L unit

check: ## folder rules: who may include whom
	@scripts/check_includes.py

asan: setup ## tests under AddressSanitizer and UBSan
	@scripts/sanitize asan

tsan: setup ## tests under ThreadSanitizer
	@scripts/sanitize tsan

bench: build ## ours and the peers alternately; one JSON object a line
	@scripts/setup --bench
	@build/trireme bench allreduce
	@build/trireme bench train

format: ## clang-format all sources
	@git ls-files '*.cpp' '*.h' | xargs clang-format -i

tidy: build ## clang-tidy on the torch-free core
	@git ls-files 'trireme/base/*.cpp' 'trireme/space/*.cpp' 'trireme/comm/**.cpp' 'trireme/cluster/*.cpp' 'trireme/exchange/*.cpp' | xargs -n 4 clang-tidy -p $(BUILD) --quiet

install: build ## install to PREFIX (default /usr/local)
	@cmake --install $(BUILD) --prefix $(or $(PREFIX),/usr/local)

clean: ## remove build folders
	@rm -rf build build-*
