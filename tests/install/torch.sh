#!/usr/bin/env bash
# Tests the ops for PyTorch in a fresh virtual environment that holds the wheel, torch and pytest: torch.sh [VERSION]
# Then also the layers of Megatron-core.
# The environment stays in build/torch/VERSION. Some 5 GB, most of which is CUDA that torch brings. Says "skipped" where
# torch cannot be had.
set -euo pipefail
cd "$(dirname "$0")/../.."
version=${1:-2.11.0} megatron=0.16.1
folder=$PWD/build/torch/$version
python=$folder/bin/python

skip() {
    echo "torch: SKIPPED, $1"
    exit 0
}

env -u MAKEFLAGS make wheel SHINGLE_CUDA=OFF
wheel=$(ls build/wheel/*.whl)
if [[ ! -e $folder/installed ]]; then
    rm -rf "$folder"
    mkdir -p build/torch
    /usr/bin/python3 -m venv "$folder" || skip "no virtual environments: python3-venv is missing"
    echo "torch: fetching torch $version into build/torch (some minutes, 5 GB on disk)"
    if ! "$python" -m pip install --quiet --disable-pip-version-check --only-binary :all: "torch==$version" pytest numpy \
        >build/torch/log 2>&1; then
        tail -n 3 build/torch/log
        rm -rf "$folder" # the disk may be full
        skip "torch $version cannot be had (build/torch/log)"
    fi
    touch "$folder/installed"
fi
"$python" -m pip install --quiet --disable-pip-version-check --no-index --force-reinstall --no-deps "$wheel"
# The package is the wheel's, and the library is the wheel's.
tests() {
    env -u PYTHONPATH -u SHINGLE_LIBRARY -u SHINGLE_PROGRAM PYTHONDONTWRITEBYTECODE=1 \
        "$python" -m pytest -q -p no:cacheprovider -rs "$@"
}
"$python" -m pip uninstall --quiet --yes megatron-core 2>/dev/null
tests tests/python
if "$python" -m pip install --quiet --disable-pip-version-check --no-deps "megatron-core==$megatron"; then
    tests tests/python/test_torch_megatron.py
else
    echo "torch: SKIPPED layers of Megatron, megatron-core $megatron cannot be had"
fi
