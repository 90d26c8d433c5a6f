#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# dkms-pre-build.sh [--no-build] KDIR: what DKMS runs before it builds the modules, in their
# folder: makes the Rust metadata of the kernel, and checks that nothing else is
# missing.  For a kernel newer than those that the modules were made for, it also
# builds them, unless it is told not to.  The kernel's Rust interfaces change from
# version to version; a build that fails for that reason must not make the
# installation of the kernel fail.
#
# Status 77, at which DKMS skips the kernel: that of kernel-metadata.sh, something is
# missing, or the modules cannot be built for the newer kernel.
set -u

# Variables of the user who upgrades a package lead bindgen and the compilers elsewhere; dkms.conf unsets them, too.
unset LIBCLANG_PATH LLVM_CONFIG_PATH CLANG_PATH BINDGEN_EXTRA_CLANG_ARGS RUSTFLAGS

build=1
if [ "${1:-}" = --no-build ]; then
	build=
	shift
fi
headers=${1:?usage: dkms-pre-build.sh [--no-build] KDIR}
NEWEST=7.3

is_newer() { [ "$(printf '%s\n' "$1" "$2" | sort --version-sort | tail -n 1)" != "$2" ]; }

release=$(cat "$headers/include/config/kernel.release" 2>/dev/null)
version=$(cut -d. -f1,2 <<<"${release%%[-+]*}")
# skip WHAT: whatever fails for a newer kernel, this version of the modules was not made for it.
skip() {
	printf 'error: %s kernel %s: install a version of ibtrs that was made for kernel %s\n' \
		"$1" "$release" "$version" >&2
	exit 77
}
newer=
! is_newer "$version" "$NEWEST" || newer=1

"$(dirname "$0")/kernel-metadata.sh" "$headers" || {
	status=$?
	[ "$status" = 77 ] || [ -z "$newer" ] || skip "the Rust metadata cannot be made for"
	exit "$status"
}
# As DKMS will, if clang built the kernel.
LLVM=${LLVM:-$(sed -n 's/^CONFIG_CC_IS_CLANG=y$/1/p' "$headers/.config" 2>/dev/null)}
export LLVM
make check-kdir "KDIR=$headers" || exit 77
[ -z "$newer" ] || [ -z "$build" ] || make -j"$(nproc)" "KDIR=$headers" || skip "the modules do not compile for"
