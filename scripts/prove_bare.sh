#!/usr/bin/env bash
# Proves the README's commands on a bare Debian 12. Builds a minimal root with debootstrap, copies HEAD there, and
# installs make. Inside, it runs make run, make install and make test. Run it by hand, as root, from a checkout; it
# needs debootstrap and the network. MIRROR=... selects a mirror. The root stays in build/bare until the next run.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD/build/bare
((EUID == 0)) || { echo "prove_bare: run as root" >&2; exit 3; }

# A private mount namespace holds all mounts; they disappear with it.
[[ ${1:-} == --inside ]] || exec unshare --mount --propagation private "$0" --inside

rm -rf --one-file-system "$root"
mkdir -p "$root"
debootstrap --variant=minbase bookworm "$root" ${MIRROR:+"$MIRROR"}

# The root uses this machine's network settings: package sources, resolver, proxies and local certificates.
# Package sources of other vendors are left out: they need keys that a bare Debian lacks.
for file in /etc/apt/sources.list /etc/apt/sources.list.d/debian.sources /etc/resolv.conf /etc/pip.conf \
    /usr/local/share/ca-certificates; do
    [[ -s $file ]] || continue
    mkdir -p "$root${file%/*}"
    cp -rL "$file" "$root${file%/*}/"
done
[[ -s $root/etc/apt/sources.list.d/debian.sources ]] && rm -f "$root/etc/apt/sources.list"
apt-config dump | grep -iE '^Acquire::(Check|.*Proxy)' >"$root/etc/apt/apt.conf.d/host" || true
mapfile -t environment < <(env | grep -iE '^(https?_proxy|no_proxy|PIP_(CERT|INDEX_URL|PROXY|DEFAULT_TIMEOUT))=')

mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
inside() {
    chroot "$root" env -i HOME=/root LANG=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin \
        DEBIAN_FRONTEND=noninteractive "${environment[@]}" "$@" </dev/null
}

git archive --prefix=shingle/ HEAD | tar -x -C "$root"
inside apt-get update -qq
inside apt-get install -qq -y --no-install-recommends make
inside make -C /shingle run
inside make -C /shingle install PREFIX=/opt/shingle
inside make -C /shingle test
echo "prove_bare: make run, make install and make test pass on a bare Debian $(cat "$root/etc/debian_version")"
