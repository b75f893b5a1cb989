#!/usr/bin/env bash
# Installs a build elsewhere and uses it as others would: run.sh <build folder>
# One consumer, built by find_package and by pkg-config; both must say the same right thing. Then the program.
set -euo pipefail
build=$1
source=$(cd "$(dirname "$0")/consumer" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
prefix=$scratch/prefix

cmake --install "$build" --prefix "$prefix" --strip >"$scratch/install.log"
cmake -G Ninja -S "$source" -B "$scratch/consumer" -D CMAKE_BUILD_TYPE=Release -D CMAKE_PREFIX_PATH="$prefix"
cmake --build "$scratch/consumer"

PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name shingle.pc)")
export PKG_CONFIG_PATH
# shellcheck disable=SC2046  # flags are words
c++ -std=c++20 "$source/main.cpp" -o "$scratch/by_pkg_config" $(pkg-config --cflags --libs shingle)

export LD_LIBRARY_PATH=${PKG_CONFIG_PATH%/pkgconfig}
version=$(pkg-config --modversion shingle)
for consumer in "$scratch/consumer/consumer" "$scratch/by_pkg_config"; do
    said=$("$consumer")
    echo "${consumer#"$scratch"/}: $said"
    grep -q "^shingle ${version//./\\.}, commit [0-9a-z-]*: the sum is right" <<<"$said"
done
# What is loaded into others' programs shows nothing else.
shown=$(nm -D --defined-only "$(find "$prefix" -name libnccl-tuner-shingle.so)" | awk '{print $3}' | sort | xargs)
[[ $shown == "ncclTunerPlugin_v4 ncclTunerPlugin_v5" ]]
unset LD_LIBRARY_PATH # the installed program finds its own library
"$prefix/bin/shingle" --version | grep -F "$version"
[[ -n $(ls "$prefix"/share/shingle/models/*.json) ]]
(cd / && "$prefix/bin/shingle" plan --op gemm --m 8 --n 8 --k 8 --machine h200x8 | grep -F "predicted for h200x8") # finds what was installed
