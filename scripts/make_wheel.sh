#!/usr/bin/env bash
# Builds the Python wheel in build/wheel, with the CUDA backend if nvcc is found; SHINGLE_CUDA=OFF leaves it out.
# auditwheel copies oneDNN, OpenBLAS and fmt into the wheel, and computes its platform tag. The tools come with
# `scripts/setup.sh build wheel`.
set -euo pipefail
cd "$(dirname "$0")/.."
tools=$PWD/build/python/wheel
export PYTHONPATH=$tools PATH=$tools/bin:$PATH
export CC=${CC:-cc} CXX=${CXX:-c++} # as CMake alone: objects of `make install` in the compiler cache serve
rm -rf build/wheel
mkdir -p build/wheel

# Runs a command with its output in the log, and prints the log on failure.
quietly() {
    "$@" >>build/wheel/log 2>&1 && return
    cat build/wheel/log >&2
    return 1
}

quietly /usr/bin/python3 -m pip wheel --disable-pip-version-check --no-build-isolation --no-deps \
    --wheel-dir build/wheel/linked .
quietly /usr/bin/python3 -m auditwheel repair --strip --wheel-dir build/wheel build/wheel/linked/*.whl
du -h build/wheel/*.whl
