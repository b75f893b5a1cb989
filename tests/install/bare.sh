#!/usr/bin/env bash
# Tries a wheel in a bare Debian 12: bare.sh WHEEL. The root is debootstrap's minbase and Python. The wheel is installed
# and used there without a network, and each library that the loader finds must be the wheel's or a part of every Linux.
# Takes minutes. SHINGLE_DEBIAN_MIRROR names a mirror; default: the one that apt uses for Debian 12, else Debian's own.
# Exits 77, and says why, where such a root cannot be made.
set -euo pipefail
source=$(cd "$(dirname "$0")/../.." && pwd)
(($# == 1)) || { echo 'usage: bare.sh WHEEL, such as build/wheel/shingle-*.whl' >&2; exit 2; }
wheel=$(realpath -e "$1")

skip() {
    echo "bare: SKIPPED, $1"
    exit 77
}
((EUID == 0)) || skip "chroot needs root"
command -v debootstrap >/dev/null || skip "debootstrap is missing; run: apt-get install debootstrap"
unshare --mount --net true 2>/dev/null || skip "this machine allows no mount and network namespaces"

mirror=${SHINGLE_DEBIAN_MIRROR:-}
if [[ -z $mirror ]] && command -v apt-get >/dev/null; then
    mirror=$(apt-get indextargets --format '$(CODENAME) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' |
        awk '$1 == "bookworm" && $2 == "main" && !found { print $3; found = 1 }')
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
root=$scratch/root
mirror=${mirror:-http://deb.debian.org/debian}
debootstrap --variant=minbase --include=python3,python3-venv bookworm "$root" "$mirror" >"$scratch/log" 2>&1 || {
    tail -n 5 "$scratch/log"
    skip "debootstrap failed; SHINGLE_DEBIAN_MIRROR names another mirror"
}

mkdir "$root/try"
cp "$wheel" "$source/examples/python/01_see_a_plan.py" "$root/try"
cat >"$root/try/try.sh" <<'EOF'
set -euo pipefail
cd /try
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check --no-index shingle-*.whl
echo "bare: Debian $(cat /etc/debian_version), $(venv/bin/python --version), $(venv/bin/shingle --version)"

# ldd asks the loader of this system, also for what bundled libraries need: they have no run path of their own.
packages=$(ls -d /try/venv/lib/python3*/site-packages)
known='=> /try/[^ ]+/shingle\.libs/|linux-vdso|^\s*/lib64/ld-linux'
known+='|=> /lib/[^ ]+/lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s)\.so'
count=0
while read -r file; do
    [[ $(head -c 4 "$file" | tr -d '\0') == $'\x7fELF' ]] || continue
    count=$((count + 1))
    needed=$(ldd "$file")
    if grep -vE "$known" <<<"$needed"; then
        echo "bare: ${file#"$packages/"} needs the libraries above, which are neither bundled nor a part of every Linux"
        exit 1
    fi
done < <(find "$packages/shingle" -type f)
((count >= 3)) || { echo "bare: found $count programs and libraries; expected at least 3"; exit 1; }
echo "bare: the loader finds what $count programs and libraries need"

library=$packages/shingle/libshingle.so
venv/bin/python -c "import ctypes, shingle; ctypes.CDLL('$library')"
venv/bin/shingle plan --op gemm+allreduce --m 96 --n 80 --k 64 --world 2 >/dev/null
venv/bin/shingle run --op gemm+allreduce --m 96 --n 80 --k 64 --world 2 --repeat 1
venv/bin/python 01_see_a_plan.py >said || { cat said; exit 1; }
EOF
# The loader finds $ORIGIN by /proc. The mount goes with its namespace.
unshare --mount --net --propagation private bash -c 'mount -t proc proc "$0/proc" && exec chroot "$0" /usr/bin/env -i \
    PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 bash /try/try.sh' "$root"
echo "bare: passed"
