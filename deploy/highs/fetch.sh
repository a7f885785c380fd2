#!/bin/sh
# Puts the HiGHS solver where bench/solver looks for it:
#
#   .cache/highs/1.15.3/highs.wasm     (below the repository's root)
#
# It comes from the npm package highs at the version below; the digests of the package and of the
# module are checked. Running this again does nothing when the module is there. Only tests and
# `downbeat bench` use it.
set -eu

version=1.15.3
package=highs@$version
package_sha256=218533577886c69023739024bb92cfc2831ba45ff1fd1fd981753c04cded9793
module_sha256=528be4365bea1d4188988646b244263f50320df55782e14d6af5bce7cd45c840

fail() {
	echo "deploy/highs/fetch.sh: $*" >&2
	exit 1
}

digest() { sha256sum "$1" | cut -d ' ' -f 1; }

root=$(cd "$(dirname "$0")/../.." && pwd)
dir=$root/.cache/highs/$version
module=$dir/highs.wasm

if [ -f "$module" ] && [ "$(digest "$module")" = "$module_sha256" ]; then
	echo "highs: $version is in place"
	exit 0
fi

command -v npm >/dev/null 2>&1 || fail "npm is needed to fetch $package (Debian: apt-get install npm)"
mkdir -p "$dir" || fail "cannot make $dir"
scratch=$(mktemp -d "$dir/fetch.XXXXXX") || fail "cannot write in $dir"
trap 'rm -rf "$scratch"' EXIT
trap 'exit 1' HUP INT TERM

(cd "$scratch" && npm pack --silent "$package" >npm.out 2>npm.err) ||
	fail "npm pack $package failed: $(tail -n 3 "$scratch/npm.err")"
tarball=$(find "$scratch" -name '*.tgz' | head -n 1)
[ -n "$tarball" ] || fail "npm pack $package wrote no package"
got=$(digest "$tarball")
[ "$got" = "$package_sha256" ] ||
	fail "$package: the digest of the package is $got, expected $package_sha256; nothing was installed"

tar -xzf "$tarball" -C "$scratch" package/build/highs.wasm || fail "$package: no highs.wasm in it, or the disk is full"
fresh=$scratch/package/build/highs.wasm
got=$(digest "$fresh")
[ "$got" = "$module_sha256" ] ||
	fail "$package: the digest of the module is $got, expected $module_sha256; nothing was installed"
chmod 644 "$fresh"
mv -f "$fresh" "$module" || fail "cannot write $module"
echo "highs: $version is in place"
