# A thin door to the CMake presets. PRESET=release (asan, tsan, cuda) builds another one; JOBS=n bounds the cores.
PRESET ?= host
JOBS ?= $(shell nproc)
ARGS ?= --model models/llama-3-8b.json --tp 4 --tokens 512 --layer-ops --link 80MB/s,10us --timeline
build := build/$(PRESET)
ninja := cmake --build --preset $(PRESET) -j $(JOBS)

.DEFAULT_GOAL := help
.PHONY: help setup run build test format clean

help:
	@echo 'make run     build, then overlap the operators of a transformer layer on four ranks'
	@echo '             (make run ARGS="..." passes your own arguments to shingle run)'
	@echo 'make test    build everything and run all tests'
	@echo 'make build   build the program: $(build)/bin/shingle'
	@echo 'make format  format the sources in place'
	@echo 'make clean   remove build/'

setup:
	@scripts/setup.sh

$(build)/build.ninja: CMakePresets.json | setup
	cmake --preset $(PRESET)
	@touch $@

build: $(build)/build.ninja
	@$(ninja) --target shingle_program

run: build
	$(build)/bin/shingle run $(ARGS)

test: $(build)/build.ninja
	@$(ninja)
	ctest --preset $(PRESET) -j $(JOBS)

format: setup
	scripts/check_format.sh --fix

clean:
	rm -rf build
