#!/usr/bin/env bash
# Builds the wheel without CUDA (make wheel), checks what it holds and needs, installs it into a fresh virtual environment
# and uses it as others would. wheel.sh WHEEL checks one that is built. Exits 77, and says why, where wheels cannot be
# built or virtual environments made.
set -euo pipefail
source=$(cd "$(dirname "$0")/../.." && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
most_mb=60

skip() {
    echo "wheel: SKIPPED, $1"
    exit 77
}
/usr/bin/python3 -m venv "$scratch/venv" >/dev/null 2>&1 || skip "no virtual environments: python3-venv is missing"

if (($#)); then
    wheel=$1
else
    "$source/scripts/setup.sh" build wheel || skip "the tools that build wheels cannot be had"
    env -u MAKEFLAGS make -C "$source" wheel SHINGLE_CUDA=OFF
    wheel=$(ls "$source"/build/wheel/*.whl)
    # The check can fail: before auditwheel, libraries are missing.
    said=$(/usr/bin/python3 "$source/tests/install/check_wheel.py" "$source"/build/wheel/linked/*.whl || true)
    grep -q "bin/shingle needs libdnnl.* neither bundled" <<<"$said"
fi
echo "wheel: $(basename "$wheel"), $(du -h "$wheel" | cut -f1)"
/usr/bin/python3 "$source/tests/install/check_wheel.py" "$wheel" --most-mb "$most_mb"

python=$scratch/venv/bin/python
"$python" -m pip install --quiet --disable-pip-version-check --no-index "$wheel"
cd "$scratch" # not the source tree
version=$(sed -n 's/^  VERSION //p' "$source/CMakeLists.txt")
"$scratch/venv/bin/shingle" --version | grep -F "shingle $version"
"$python" -c "import shingle; assert shingle.__version__ == '$version', shingle.__version__"
"$python" -c "import ctypes, pathlib, shingle; ctypes.CDLL(pathlib.Path(shingle.__file__).parent / 'libshingle.so')"
for example in "$source"/examples/python/0[16]_*.py; do
    echo "wheel: $(basename "$example")"
    "$python" "$example" >"$scratch/said" || { cat "$scratch/said"; exit 1; }
done
"$scratch/venv/bin/shingle" run --op gemm+allreduce --m 96 --n 80 --k 64 --world 2 --repeat 1
