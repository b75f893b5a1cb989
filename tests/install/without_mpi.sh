#!/usr/bin/env bash
# libshingle.so without libshingle-mpi.so: without_mpi.sh PROGRAM LIBRARY. Threads work; the backend "mpi", which
# mpirun implies, is refused with the reason.
set -euo pipefail
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cp "$1" "$scratch/program"
cp "$2" "$scratch/"
export LD_LIBRARY_PATH=$scratch
loaded=$(ldd "$scratch/program")
grep -qF "$scratch/libshingle.so" <<<"$loaded" || { # the program's own RUNPATH goes first where it is an RPATH
    echo "another library is loaded: $loaded"
    exit 1
}
"$scratch/program"
code=0
said=$(PMI_RANK=0 "$scratch/program" 2>&1) || code=$?
echo "$said"
[[ $code == 1 && $said == "unsupported: the mpi backend needs libshingle-mpi.so"* ]]
