#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# build-faults.sh FLAVOUR: builds the module that makes functions fail in tests,
# for a cached test kernel; prints its path as the last line.
# shellcheck source=scripts/env.sh
. "$(dirname "$0")/env.sh"

flavour=${1:?usage: build-faults.sh FLAVOUR}
kernel=$("$TOP/scripts/build-kernel.sh" "$flavour" | tail -n 1)
out=$IBTRS_CACHE/build/$(sha256sum <<<"$TOP:$kernel" | cut -c1-12)-$flavour-faults
mkdir -p "$out"
# Several scenarios may want it at once.
exec 9>"$out/.lock"
flock 9
env -u MAKEFLAGS -u MFLAGS make -s -C "$kernel" M="$TOP/tools/testbed/faults" MO="$out" \
	"${KERNEL_MAKE_ARGS[@]}" ${W:+W=$W} modules >&2
echo "$out/ibtrs_faults.ko"
