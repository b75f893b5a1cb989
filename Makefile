# Wrapper of the CMake presets. PRESET=release (asan, tsan, cuda) selects another preset; JOBS=n limits the cores.
PRESET ?= host
JOBS ?= $(shell nproc)
# Job slots of tests that mostly wait for deadlines. They do not depend on the cores. Each such test takes two slots.
WAITING ?= 12
PREFIX ?= /usr/local
# The link is slow enough that its transfers take about as long as one core's matrix products.
ARGS ?= --model models/llama-3-8b.json --tp 2 --tokens 128 --layer-ops --dtype f32 --workers 1 \
  --link 40MB/s,10us --mechanism chunked,fused --timeline
build := build/$(PRESET)
install_build := build/install-$(PRESET)
ninja := cmake --build --preset $(PRESET) -j $(JOBS)
groups := build $(filter test,$(MAKECMDGOALS)) $(filter cuda,$(PRESET)) # groups of packages to install
# Unity builds compile faster. They serve builds without later edits: CI's, `make run` and `make install`.
together := -D CMAKE_UNITY_BUILD=ON
# The first configuration has tests only for `make test`, because they need more packages.
tests := $(if $(filter test,$(MAKECMDGOALS)),ON,OFF)
first := -D SHINGLE_TESTS=$(tests) $(if $(filter run,$(MAKECMDGOALS)),$(together))

# $(call configure,arguments): writes CMake's output to a log, and prints the log on failure.
configure = @echo "cmake $(1)"; cmake $(1) >build/configure.log || { cat build/configure.log >&2; exit 1; }

# $(call announce,folder,core-seconds,size): prints the time and size of a first build.
announce = @test -e $(1)/src/libshingle.a || \
  echo 'the first build takes about $(shell expr $(2) / 60 / $(JOBS) + 1) minutes on $(JOBS) cores and $(3) in $(1)'

.DEFAULT_GOAL := help
.PHONY: help setup packages run build test test-torch install wheel format docs clean

help:
	@echo 'make run      build, then overlap the operators of a transformer layer on two ranks'
	@echo '              (make run ARGS="..." passes your own arguments to shingle run)'
	@echo 'make test     build everything and run all tests'
	@echo 'make test-torch  test the wheel with PyTorch (TORCH=2.11.0) in an environment of its own'
	@echo 'make build    build the program: $(build)/bin/shingle'
	@echo 'make install  build program, library and NCCL tuner plugin, install them below PREFIX=$(PREFIX)'
	@echo 'make wheel    build the Python wheel: build/wheel/shingle-*.whl (SHINGLE_CUDA=OFF: without CUDA)'
	@echo 'make format   format the sources in place'
	@echo 'make docs     build the documentation site: build/site/index.html'
	@echo 'make clean    remove build/'

setup:
	@scripts/setup.sh

packages:
	@scripts/setup.sh $(groups)

$(build)/build.ninja: CMakePresets.json | packages
	$(call configure,--preset $(PRESET) $(if $(wildcard $(build)/CMakeCache.txt),,$(first)))
	@touch $@

build: $(build)/build.ninja
	$(call announce,$(build),$(if $(filter run,$(MAKECMDGOALS)),300,1200),$(if $(filter run,$(MAKECMDGOALS)),100 MB,350 MB))
	@$(ninja) --target shingle_program

run: build
	$(build)/bin/shingle run $(ARGS)

test: $(build)/build.ninja
	$(call announce,$(build),2000,1.3 GB)
	@grep -q '^SHINGLE_TESTS:BOOL=ON' $(build)/CMakeCache.txt || cmake --preset $(PRESET) -D SHINGLE_TESTS=ON
	@$(ninja)
	ctest --preset $(PRESET) -j $(JOBS) -LE '^waits$$'
	ctest --preset $(PRESET) -j $(WAITING) -L '^waits$$'

test-torch:
	@scripts/setup.sh build wheel
	tests/install/torch.sh $(TORCH)

# Builds in a folder of its own, and installs every target. Compiler warnings do not stop it.
install: packages
	@mkdir -p "$(DESTDIR)$(PREFIX)" && test -w "$(DESTDIR)$(PREFIX)" || { \
	  echo 'install: cannot write to $(DESTDIR)$(PREFIX): say PREFIX=FOLDER, or install as root' >&2; exit 2; }
	$(call configure,--preset $(PRESET) -B $(install_build) -D CMAKE_BUILD_TYPE=Release -D SHINGLE_TESTS=OFF \
	  -D SHINGLE_WERROR=OFF $(together))
	$(call announce,$(install_build),360,35 MB)
	@cmake --build $(install_build) -j $(JOBS)
	@cmake --install $(install_build) --prefix "$(abspath $(PREFIX))" --strip >build/install.log
	@echo 'installed below $(abspath $(PREFIX)): CMAKE_PREFIX_PATH is for find_package(shingle); for pkg-config:'
	@echo "  PKG_CONFIG_PATH=$$(dirname "$$(grep -o '/.*/shingle\.pc' build/install.log)")"

wheel:
	@scripts/setup.sh build wheel $(if $(shell command -v nvcc),$(if $(filter OFF,$(SHINGLE_CUDA)),,cuda))
	$(call announce,build/install-wheel,360,35 MB)
	@CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) scripts/make_wheel.sh

format:
	@scripts/setup.sh format
	scripts/check_format.sh --fix

# --strict: a broken link or anchor, or a page missing from the navigation, is an error.
docs:
	@scripts/setup.sh docs
	PYTHONPATH=build/python/docs /usr/bin/python3 -m mkdocs build --strict

clean:
	rm -rf build
