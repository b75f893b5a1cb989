#!/usr/bin/env bash
# Installs Shingle's build dependencies: scripts/setup.sh [group]... The groups are:
#   build   the program and the library          test    build and run the tests
#   format  format the sources                   docs    build the documentation site
#   cuda    build the CUDA backend (without nvcc itself)
#   wheel   build the Python wheel, beside the group build
# Without arguments it takes all groups; cuda only if nvcc is found. System packages are listed in
# scripts/packages.txt. Python wheels (scripts/requirements/) go to build/python/<group>. Cheap if nothing is missing.
# Exit codes: 2 for an unknown group; 3, with the command to run, if it may not install packages; 1 if an installation
# fails.
set -euo pipefail
cd "$(dirname "$0")/.."
log=build/setup.log

fail() {
    local code=$1
    shift
    printf 'setup: %s\n' "$@" >&2
    exit "$code"
}

groups=("$@")
((${#groups[@]})) || groups=(build test format docs wheel)
((${#})) || ! command -v nvcc >/dev/null || groups+=(cuda)
for group in "${groups[@]}"; do
    [[ " build test format docs cuda wheel " == *" $group "* ]] ||
        fail 2 "there is no group '$group' (one of build, test, format, docs, cuda, wheel)"
done
command -v dpkg-query >/dev/null ||
    fail 3 "this is not Debian or Ubuntu; install what scripts/packages.txt names, then use cmake --preset host"

# Prints the lines of scripts/packages.txt for the selected groups, without the group names.
lines_of_groups() {
    local line group
    while read -r line; do
        for group in "${groups[@]}"; do
            [[ " ${line%%:*} " != *" $group "* ]] || { echo "${line#*: }" && break; }
        done
    done < <(grep -v '^#' scripts/packages.txt)
}

# Runs a command with its output in the log, and prints the end of the log on failure.
quietly() {
    "$@" </dev/null >"$log" 2>&1 && return
    tail -n 40 "$log" >&2
    return 1
}

# Rewords apt's "Need to get 12.3 MB of archives. After this operation, 45.6 MB of additional disk space will be used."
# Adds the time at 10 MB/s from the network and 20 MB/s to the disk.
how_large() {
    local text
    text=$(LC_ALL=C "$@" --assume-no 2>/dev/null </dev/null || true)
    awk '
        function mb(number, unit) { gsub(",", "", number); return number * (unit == "GB" ? 1e3 : unit == "kB" ? 1e-3 : unit == "B" ? 1e-6 : 1) }
        /^Need to get/ { fetch = mb($4 ~ "/" ? substr($4, 1, index($4, "/") - 1) : $4, $5) }
        /^After this operation/ { disk = mb($4, $5) }
        /newly installed/ { count = $1 + $3 }
        END {
            minutes = (fetch / 10 + disk / 20) / 60
            printf "%d packages with what they need, %.0f MB to fetch, %.0f MB on disk, about %s\n", count, fetch, disk,
                   minutes < 1 ? "a minute" : sprintf("%.0f minutes", minutes + 0.5)
        }' <<<"$text"
}

install_packages() {
    local apt=(apt-get install --no-install-recommends "$@") as_root
    local by_hand="run this as root, then try again: apt-get update && ${apt[*]}"
    if ((EUID == 0)); then
        as_root=(env)
    elif sudo -n true 2>/dev/null; then
        as_root=(sudo -n env)
    elif [[ -t 0 ]] && command -v sudo >/dev/null; then
        as_root=(sudo env)
    else
        fail 3 "this user may not install packages; $by_hand"
    fi
    as_root+=(DEBIAN_FRONTEND=noninteractive)
    echo "setup: asking how large they are (apt-get update); what apt says goes to $log"
    quietly "${as_root[@]}" apt-get update || fail 1 "apt-get update failed, see $log; $by_hand"
    apt+=(-o DPkg::Lock::Timeout=300)
    echo "setup: installing $(how_large "${as_root[@]}" "${apt[@]}")"
    quietly "${as_root[@]}" "${apt[@]}" -y ||
        fail 1 "apt-get install failed, see $log; $by_hand"
}

bring_packages() {
    local lines wanted installed missing=() absent package line
    mapfile -t lines < <(lines_of_groups)
    read -ra wanted <<<"${lines[*]%%#*}"
    installed=$(dpkg-query -W -f='${Package} ${db:Status-Status}\n' "${wanted[@]}" 2>/dev/null |
        sed -n 's/ installed$//p' || true)
    for line in "${lines[@]}"; do
        absent=()
        for package in ${line%%#*}; do
            grep -qxF "$package" <<<"$installed" || [[ " ${missing[*]} " == *" $package "* ]] || absent+=("$package")
        done
        if ((${#absent[@]})); then
            echo "setup: missing ${absent[*]} (${line#*# })"
            missing+=("${absent[@]}")
        fi
    done
    ((${#missing[@]} == 0)) || install_packages "${missing[@]}"
}

# Installs the wheels of a group with /usr/bin/python3, which the system packages serve, whatever PATH holds.
bring_wheels() {
    local file=scripts/requirements/$1.txt folder=build/python/$1 python=/usr/bin/python3 stamp
    [[ -f $file ]] || return 0
    stamp=$("$python" --version && cat "$file")
    [[ "$(cat "$folder/stamp" 2>/dev/null)" != "$stamp" ]] || return 0
    echo "setup: fetching $(grep -o '^[a-z0-9-]*==[0-9.]*' "$file" | xargs) into $folder (some seconds, $(sed -n '1s/.*; //p' "$file"))"
    rm -rf "$folder" "$folder.part"
    # No dependencies: only headers are needed.
    quietly "$python" -m pip install --disable-pip-version-check --root-user-action=ignore --only-binary :all: \
        --no-deps --require-hashes -r "$file" --target "$folder.part" || fail 1 "pip failed, see $log"
    printf '%s\n' "$stamp" >"$folder.part/stamp"
    mv "$folder.part" "$folder"
}

mkdir -p build/python
bring_packages
for group in "${groups[@]}"; do bring_wheels "$group"; done
