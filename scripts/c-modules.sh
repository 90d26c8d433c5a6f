# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# Sourced: builds modules in C that the tests and the bench need.

# shellcheck source=scripts/stock-tools.sh
. "$TOP/scripts/stock-tools.sh"

# build_c_modules FLAVOUR FOLDER NAME: builds the modules of a folder of the
# tree for a test kernel, and sets $out to the folder with them, which is
# locked until the script ends: several scenarios may want it at once.
build_c_modules() {
	local flavour=$1 folder=$2 name=$3 kernel release with_tools=()
	kernel=$("$TOP/scripts/build-kernel.sh" "$flavour" | tail -n 1)
	out=$IBTRS_CACHE/build/$(sha256sum <<<"$TOP:$kernel" | cut -c1-12)-$flavour-$name
	mkdir -p "$out"
	exec 9>"$out/.lock"
	flock 9

	if [ "$flavour" = stock ]; then
		release=$(cat "$kernel/include/config/kernel.release")
		make_stock_tools "$release"
		kernel=$(stock_kdir "$release" | tail -n 1)
		with_tools=(with_stock_tools)
		KERNEL_MAKE_ARGS=()
	fi
	"${with_tools[@]}" env -u MAKEFLAGS -u MFLAGS make -s -C "$kernel" M="$TOP/$folder" MO="$out" \
		"${KERNEL_MAKE_ARGS[@]}" ${W:+W=$W} modules >&2
	[ "$flavour" != stock ] || find "$out" -name '*.ko' -exec strip --strip-debug {} +
}
