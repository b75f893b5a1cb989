#!/usr/bin/env bash
# Checks the C++ sources against .clang-format; --fix formats them. `scripts/setup.sh format` installs clang-format.
set -euo pipefail
cd "$(dirname "$0")/.."
action=(--dry-run -Werror --ferror-limit=1)
[[ ${1:-} == --fix ]] && action=(-i)
find include src tools plugins python tests examples bench -regex '.*\.\([ch]\|[ch]pp\|cuh?\)' -print0 | sort -z |
    PYTHONPATH=build/python/format xargs -0r build/python/format/bin/clang-format --style=file "${action[@]}" || {
    echo "check_format: make format puts this right" >&2
    exit 1
}
