#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# build-card.sh FLAVOUR: builds the strict RDMA device in software and its tests,
# for a test kernel; prints the folder with the modules as the last line.
# shellcheck source=scripts/env.sh
. "$(dirname "$0")/env.sh"
# shellcheck source=scripts/stock-tools.sh
. "$TOP/scripts/stock-tools.sh"

flavour=${1:?usage: build-card.sh FLAVOUR}
kernel=$("$TOP/scripts/build-kernel.sh" "$flavour" | tail -n 1)
out=$IBTRS_CACHE/build/$(sha256sum <<<"$TOP:$kernel" | cut -c1-12)-$flavour-card
mkdir -p "$out"
# Several scenarios may want it at once.
exec 9>"$out/.lock"
flock 9

with_tools=()
if [ "$flavour" = stock ]; then
	release=$(cat "$kernel/include/config/kernel.release")
	make_stock_tools "$release"
	kernel=$(stock_kdir "$release" | tail -n 1)
	with_tools=(with_stock_tools)
	KERNEL_MAKE_ARGS=()
fi
"${with_tools[@]}" env -u MAKEFLAGS -u MFLAGS make -s -C "$kernel" M="$TOP/tools/card" MO="$out" \
	"${KERNEL_MAKE_ARGS[@]}" ${W:+W=$W} modules >&2
[ "$flavour" != stock ] || find "$out" -name '*.ko' -exec strip --strip-debug {} +
echo "$out"
