#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# check-arm64.sh: compiles all modules for 64-bit ARM with pages of 64 KiB, without a
# warning.  The modules are not linked against a kernel: the script only prepares one,
# which takes two minutes the first time.
# shellcheck source=scripts/env.sh
. "$(dirname "$0")/env.sh"

kernel=$("$TOP/scripts/build-kernel.sh" arm64 prepare | tail -n 1)
out=$IBTRS_CACHE/build/$(sha256sum <<<"$TOP:$kernel" | cut -c1-12)-arm64
mkdir -p "$out"

# Undefined symbols are the kernel's, which has no list of its symbols yet.
with_progress "Compiling the modules for arm64" 80 \
	env -u MAKEFLAGS -u MFLAGS make -C "$TOP" KDIR="$kernel" OUT="$out" -j"$JOBS" ARCH=arm64 \
	"${KERNEL_MAKE_ARGS[@]}" W=1 KBUILD_MODPOST_WARN=1
log=$IBTRS_CACHE/logs/Compiling-the-modules-for-arm64.log
if grep -vE '^WARNING: (modpost: |.*Module\.symvers is missing)' "$log" | grep -Ei '\bwarning:'; then
	die "compiled for arm64, but not without warnings; the whole log is $log"
fi
say "all modules compile for arm64"
