#!/usr/bin/env bash
# Brings what Shingle builds on: system packages (scripts/packages.txt) and Python wheels into build/python.
# Cheap when nothing is missing. Exits 3, with the line to run, where it may not install packages itself.
set -euo pipefail
cd "$(dirname "$0")/.."

command -v dpkg-query >/dev/null || {
    echo "setup: this is not Debian or Ubuntu; install what scripts/packages.txt names, then use cmake --preset host" >&2
    exit 3
}

mapfile -t groups <<<"$(grep -v '^#' scripts/packages.txt)"
read -ra wanted <<<"${groups[*]%%#*}"
installed=$(dpkg-query -W -f='${Package} ${db:Status-Status}\n' "${wanted[@]}" 2>/dev/null |
    sed -n 's/ installed$//p' || true)
missing=()
for group in "${groups[@]}"; do
    absent=()
    for package in ${group%%#*}; do
        grep -qxF "$package" <<<"$installed" || absent+=("$package")
    done
    if ((${#absent[@]})); then
        echo "setup: missing ${absent[*]} (${group#*# })"
        missing+=("${absent[@]}")
    fi
done

if ((${#missing[@]})); then
    install="apt-get install -y --no-install-recommends ${missing[*]}"
    give_up() {
        echo "setup: $1; run this as root, then try again:" >&2
        echo "  apt-get update && $install" >&2
        exit 3
    }
    if ((EUID == 0)); then
        as_root=(env)
    elif sudo -n true 2>/dev/null; then
        as_root=(sudo -n env)
    elif [[ -t 0 ]] && command -v sudo >/dev/null; then
        as_root=(sudo env)
    else
        give_up "this user may not install packages"
    fi
    as_root+=(DEBIAN_FRONTEND=noninteractive)
    echo "setup: running ${as_root[*]} $install"
    "${as_root[@]}" apt-get update -qq || give_up "apt-get update failed"
    # shellcheck disable=SC2086  # the words of the line are meant to split
    "${as_root[@]}" $install -qq -o DPkg::Lock::Timeout=300 </dev/null || give_up "apt-get install failed"
fi

# The system's own interpreter: the one the packages above serve, whatever else is first in PATH.
python=/usr/bin/python3
stamp=$("$python" --version; cat scripts/requirements.txt)
if [[ "$(cat build/python/stamp 2>/dev/null)" != "$stamp" ]]; then
    echo "setup: fetching into build/python: $(grep -o '^[a-z-]*==[0-9.]*' scripts/requirements.txt | tr '\n' ' ')"
    rm -rf build/python build/python.part
    mkdir -p build
    # No dependencies: of CUTLASS only the headers are wanted.
    "$python" -m pip install -q --disable-pip-version-check --root-user-action=ignore --only-binary :all: \
        --no-deps --require-hashes -r scripts/requirements.txt --target build/python.part </dev/null
    printf '%s\n' "$stamp" >build/python.part/stamp
    mv build/python.part build/python
fi
