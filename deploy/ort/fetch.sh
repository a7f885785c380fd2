#!/bin/sh
# Puts ONNX Runtime where Downbeat looks for it:
#
#   .cache/ort/1.27.0/libonnxruntime.so.1     (below the repository's root)
#
# By default the library comes from the npm package onnxruntime-node at the version below: the
# digests of the package and of the library are checked. ORT_LIB=/path/libonnxruntime.so.1 uses an
# installed one instead (not checked: it is yours). Running this again does nothing when the
# library is there. Linux, x64 and arm64.
set -eu

version=1.27.0
package=onnxruntime-node@$version
package_sha256=c3779c01c59832f8c03e2c392ac3af10bf08579f1822e8b1c63cc451edb302a2

fail() {
	echo "deploy/ort/fetch.sh: $*" >&2
	exit 1
}

case "$(uname -s)-$(uname -m)" in
Linux-x86_64 | Linux-amd64)
	arch=x64
	library_sha256=d8aff4aa8abee8fb2abb2f2f2459ffc94461e781e41b9f7c072829dd0d470221
	;;
Linux-aarch64 | Linux-arm64)
	arch=arm64
	library_sha256=c36bc200e7e6c093b8abb0b34590fbdd8c52fd3fb5e33795b9523ffdde2fce0f
	;;
*)
	fail "no ONNX Runtime $version for $(uname -s) $(uname -m) in $package; give an installed one: ORT_LIB=/path/to/libonnxruntime.so"
	;;
esac

root=$(cd "$(dirname "$0")/../.." && pwd)
dir=$root/.cache/ort/$version
library=$dir/libonnxruntime.so.1

digest() { sha256sum "$1" | cut -d ' ' -f 1; }

# A make file may name our own place as ORT_LIB: that asks for nothing else than the default.
if [ -n "${ORT_LIB:-}" ] && [ "$ORT_LIB" != "$library" ] && ! [ "$ORT_LIB" -ef "$library" ]; then
	[ -f "$ORT_LIB" ] || fail "ORT_LIB=$ORT_LIB: no such file; it must name libonnxruntime.so"
	[ "$(dd if="$ORT_LIB" bs=1 skip=1 count=3 2>/dev/null)" = ELF ] ||
		fail "ORT_LIB=$ORT_LIB: not a shared library (no ELF header)"
	mkdir -p "$dir"
	ln -sfn "$(cd "$(dirname "$ORT_LIB")" && pwd)/$(basename "$ORT_LIB")" "$library"
	echo "onnxruntime: using $ORT_LIB"
	exit 0
fi

if [ -L "$library" ] && [ -f "$library" ]; then
	echo "onnxruntime: $(readlink "$library") is in place, by an earlier ORT_LIB; remove $library to fetch $version"
	exit 0
fi

if [ -f "$library" ] && [ "$(digest "$library")" = "$library_sha256" ]; then
	echo "onnxruntime: $version is in place"
	exit 0
fi

command -v npm >/dev/null 2>&1 ||
	fail "npm is needed to fetch $package (Debian: apt-get install npm), or give an installed library: ORT_LIB=/path/to/libonnxruntime.so"
mkdir -p "$dir" || fail "cannot make $dir"
scratch=$(mktemp -d "$dir/fetch.XXXXXX") || fail "cannot write in $dir"
trap 'rm -rf "$scratch"' EXIT
trap 'exit 1' HUP INT TERM

echo "onnxruntime: fetching $package (about 100 MB)"
(cd "$scratch" && npm pack --silent "$package" >npm.out 2>npm.err) ||
	fail "npm pack $package failed: $(tail -n 3 "$scratch/npm.err")"
tarball=$(find "$scratch" -name '*.tgz' | head -n 1)
[ -n "$tarball" ] || fail "npm pack $package wrote no package"
got=$(digest "$tarball")
[ "$got" = "$package_sha256" ] ||
	fail "$package: the digest of the package is $got, expected $package_sha256; nothing was installed"

tar -xzf "$tarball" -C "$scratch" "package/bin/napi-v6/linux/$arch/libonnxruntime.so.1" ||
	fail "$package: no library for linux $arch in it, or the disk is full"
fresh=$scratch/package/bin/napi-v6/linux/$arch/libonnxruntime.so.1
got=$(digest "$fresh")
[ "$got" = "$library_sha256" ] ||
	fail "$package: the digest of the library is $got, expected $library_sha256; nothing was installed"
chmod 644 "$fresh"
rm -f "$library"
mv "$fresh" "$library" || fail "cannot write $library"
echo "onnxruntime: $version for linux $arch is in place"
