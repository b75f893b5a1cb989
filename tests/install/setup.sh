#!/usr/bin/env bash
# scripts/setup.sh on a machine that has nothing, where apt-get, dpkg-query and sudo are stand-ins: what it installs for
# which group, what it says, and where the output of apt-get goes.
set -euo pipefail
source=$(cd "$(dirname "$0")/../.." && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$scratch/bin" "$scratch/tree"
cp -r "$source/scripts" "$scratch/tree/"
# Wheels come over the network; that they come is what the tests that need them show.
rm "$scratch"/tree/scripts/requirements/*

stand_in() {
    cat >"$scratch/bin/$1"
    chmod +x "$scratch/bin/$1"
}
stand_in dpkg-query <<<'#!/bin/sh
exit 1'
stand_in sudo <<<'#!/bin/sh
shift; exec "$@"'
stand_in apt-get <<E2
#!/bin/sh
echo "\$@" >>$scratch/asked
echo "Reading package lists... noise of apt"
echo "0 upgraded, 87 newly installed, 0 to remove and 3 not upgraded."
echo "Need to get 120/240 MB of archives."
echo "After this operation, 1,400 MB of additional disk space will be used."
case "\$*" in *--assume-no*) exit 1 ;; install*) test ! -e $scratch/broken || { echo "E: the mirror is away"; exit 100; } ;; esac
E2
export PATH=$scratch/bin:$PATH

# setup <groups>: what it says is in $scratch/said, what it asked apt-get to install in $scratch/installed.
setup() {
    rm -f "$scratch/asked"
    "$scratch/tree/scripts/setup.sh" "$@" >"$scratch/said" 2>&1
}
expect() {
    "$@" || { echo "failed: $*"; cat "$scratch/said" "$scratch/asked"; exit 1; }
}
asked() { grep -q -- "-y" "$scratch/asked" && grep -e "-y" "$scratch/asked" | grep -qw -- "$1"; }
not() { ! "$@"; }

setup build
expect asked g++
expect asked libdnnl-dev
for unneeded in libgtest-dev libbenchmark-dev python3-pip ccache; do expect not asked "$unneeded"; done
expect grep -q "87 packages with what they need, 120 MB to fetch, 1400 MB on disk, about 2 minutes" "$scratch/said"
expect grep -q "build/setup.log" "$scratch/said"
expect not grep -q "noise of apt" "$scratch/said"
expect grep -q "noise of apt" "$scratch/tree/build/setup.log"
expect test "$(wc -l <"$scratch/said")" -le 8

setup format
expect asked python3-pip
expect not asked g++
setup
for needed in g++ libgtest-dev python3-pip ccache; do expect asked "$needed"; done

touch "$scratch/broken"
code=0
setup build || code=$?
expect test "$code" = 1
expect grep -q "E: the mirror is away" "$scratch/said"
expect grep -q "apt-get install failed, see build/setup.log" "$scratch/said"
code=0
setup nose || code=$?
expect test "$code" = 2
expect grep -q "there is no group 'nose'" "$scratch/said"
echo "setup: groups, sizes and log are as they should be"
