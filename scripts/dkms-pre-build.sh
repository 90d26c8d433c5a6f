#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# dkms-pre-build.sh KDIR: what DKMS runs before it builds the modules, in their
# folder: makes the Rust metadata of the kernel.  For a kernel newer than those
# that the modules were made for, it also builds them.  The kernel's Rust
# interfaces change from version to version; a build that fails for that reason
# must not make the installation of the kernel fail.
#
# Status 77, at which DKMS skips the kernel: that of kernel-metadata.sh, or the
# modules cannot be built for the newer kernel.
set -u

headers=${1:?usage: dkms-pre-build.sh KDIR}
NEWEST=7.3

is_newer() { [ "$(printf '%s\n' "$1" "$2" | sort --version-sort | tail -n 1)" != "$2" ]; }

"$(dirname "$0")/kernel-metadata.sh" "$headers" || exit
release=$(cat "$headers/include/config/kernel.release")
version=$(cut -d. -f1,2 <<<"${release%%[-+]*}")
if is_newer "$version" "$NEWEST" && ! make -j"$(nproc)" "KDIR=$headers"; then
	printf 'error: the modules do not compile for kernel %s: install a version of ibtrs that was made for kernel %s\n' \
		"$release" "$version" >&2
	exit 77
fi
