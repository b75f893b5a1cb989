#!/usr/bin/env bash
# Installs and uses it as others would: run.sh goes the README's way, make install; run.sh <build folder> installs what
# is built there. One consumer in C++ and one in C, each built by find_package and by pkg-config; both must say the same
# right thing. Then the program.
set -euo pipefail
source=$(cd "$(dirname "$0")" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
prefix=$scratch/prefix

if (($#)); then
    cmake --install "$1" --prefix "$prefix" --strip >"$scratch/install.log"
else
    env -u MAKEFLAGS -u PRESET make -C "$source/../.." install PREFIX="$prefix"
    # Nothing but what is installed is configured: tests and benchmarks would look for their libraries.
    if grep "GTest\|benchmark_DIR" "$source/../../build/install-host/CMakeCache.txt"; then exit 1; fi
fi

cmake -G Ninja -S "$source/consumer" -B "$scratch/consumer" -D CMAKE_BUILD_TYPE=Release -D CMAKE_PREFIX_PATH="$prefix"
cmake --build "$scratch/consumer"
cmake -G Ninja -S "$source/consumer_c" -B "$scratch/consumer_c" -D CMAKE_PREFIX_PATH="$prefix"
cmake --build "$scratch/consumer_c"

PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name shingle.pc)")
export PKG_CONFIG_PATH
# shellcheck disable=SC2046  # flags are words
c++ -std=c++20 "$source/consumer/main.cpp" -o "$scratch/by_pkg_config" $(pkg-config --cflags --libs shingle-cpp)
# shellcheck disable=SC2046
cc -std=c11 -Wall -Wextra -Wpedantic -Werror "$source/../../examples/context.c" -o "$scratch/c_by_pkg_config" \
    $(pkg-config --cflags --libs shingle)

export LD_LIBRARY_PATH=${PKG_CONFIG_PATH%/pkgconfig}
version=$(pkg-config --modversion shingle)
for consumer in "$scratch/consumer/consumer" "$scratch/by_pkg_config"; do
    said=$("$consumer")
    echo "${consumer#"$scratch"/}: $said"
    grep -q "^shingle ${version//./\\.}, commit [0-9a-z-]*: the sum is right" <<<"$said"
done
for consumer in "$scratch/consumer_c/consumer_c" "$scratch/c_by_pkg_config"; do
    said=$("$consumer")
    echo "${consumer#"$scratch"/}: $said"
    [[ $(grep -c "tokens on 4 ranks by .*: every element is right" <<<"$said") == 3 ]]
done
library=$LD_LIBRARY_PATH/libshingle.so
modules=("$LD_LIBRARY_PATH"/libshingle-mpi*.so) # none without MPI
[[ -e ${modules[0]} ]] || modules=()
cuda=()
if (($#)); then cuda=(--cuda); fi # a build folder is one with CUDA
"$source/../../scripts/check_abi.py" "${cuda[@]}" "$library" "${modules[@]}"
# What is loaded into others' programs shows nothing else.
shown=$(nm -D --defined-only "$(find "$prefix" -name libnccl-tuner-shingle.so)" | awk '{print $3}' | sort | xargs)
[[ $shown == "ncclTunerPlugin_v4 ncclTunerPlugin_v5 ncclTunerPlugin_v6" ]]
unset LD_LIBRARY_PATH # the installed program finds its own library
"$prefix/bin/shingle" --version | grep -F "$version"
[[ -n $(ls "$prefix"/share/shingle/models/*.json) ]]
(cd / && "$prefix/bin/shingle" plan --op gemm --m 8 --n 8 --k 8 --machine h200x8 | grep -F "predicted for h200x8") # finds what was installed
