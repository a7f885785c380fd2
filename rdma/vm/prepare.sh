#!/bin/bash
# Prepares what boots a virtual machine with soft-RoCE: Debian's kernel, its modules, busybox, the
# verbs libraries and perftest. Caches by the packages' versions under CACHE. Prints the directory.
#
# Exit code 3: QEMU or the packages cannot be had here; the reason is on stderr.
set -euo pipefail
CACHE=${CACHE:?directory for what is fetched}
packages=(qemu-system-x86 busybox-static libibverbs-dev librdmacm-dev rdma-core ibverbs-providers perftest cpio kmod iproute2)

skip() { echo "test-rdma: skipped: $*" >&2; exit 3; }
[ "$(uname -m)" = x86_64 ] || skip "the virtual machine is x86-64, this host is $(uname -m)"
command -v apt-get >/dev/null || skip "no apt-get: a Debian host is needed"

missing=()
for p in "${packages[@]}"; do
  dpkg-query -W -f '${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing+=("$p")
done
if [ ${#missing[@]} -gt 0 ]; then
  [ "$(id -u)" = 0 ] || skip "not installed: ${missing[*]} (root is needed to install them)"
  { apt-get update -q && apt-get install -y -q --no-install-recommends "${missing[@]}"; } >&2 || skip "cannot install ${missing[*]}"
fi

# Images often come without apt's lists, or with old ones.
update() { [ "$(id -u)" = 0 ] && apt-get update -q >&2; }
newest() { apt-cache depends linux-image-amd64 2>/dev/null | awk '/Depends: linux-image/ {print $2; exit}'; }
kernel=$(newest)
[ -n "$kernel" ] || { update && kernel=$(newest); } || true
[ -n "$kernel" ] || skip "apt knows no linux-image-amd64"
digest=$(apt-cache show "$kernel" | awk '/^SHA256:/ {print $2; exit}')
dir=$CACHE/kernel-${digest:0:16}
if [ ! -e "$dir/done" ]; then
  rm -rf "$dir" && mkdir -p "$dir"
  (cd "$dir" && apt-get download -q "$kernel" >&2) ||
    { [ -z "${AGAIN:-}" ] && update && AGAIN=1 exec "$0"; } || skip "cannot download $kernel"
  echo "$digest  $(ls "$dir"/*.deb)" | sha256sum -c --quiet - >&2
  dpkg -x "$dir"/*.deb "$dir" && rm "$dir"/*.deb
  depmod -b "$dir" "${kernel#linux-image-}"
  touch "$dir/done"
fi
echo "$dir"
