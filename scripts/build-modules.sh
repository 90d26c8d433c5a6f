#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# build-modules.sh FLAVOUR [clippy|doc|doctests|rust-analyzer]: builds our modules for a
# cached test kernel and puts them into FLAVOUR below $MODULES, or runs another
# tool on them.  IBTRS_KUNIT=1 includes their test suites and puts the modules
# into FLAVOUR-kunit, compiled by clippy; IBTRS_LINES=1 adds tables of lines, and puts the modules into
# FLAVOUR-lines; W=1 turns on more compiler warnings; IBTRS_STEPS=1 prints
# a line for each step.  For the stock kernel the tools are Debian's, see
# stock-tools.sh.
# shellcheck source=scripts/env.sh
. "$(dirname "$0")/env.sh"
# shellcheck source=scripts/stock-tools.sh
. "$TOP/scripts/stock-tools.sh"

flavour=${1:?usage: build-modules.sh FLAVOUR [TOOL]}
tool=${2:-}
if [ "$flavour" = stock ]; then
	# Its headers are what is needed; the kernel itself may still be on its way.
	release=$("$TOP/scripts/stock-kernel.sh" --release | tail -n 1)
	kernel=$IBTRS_CACHE/kernel/$release-stock
else
	kernel=$("$TOP/scripts/build-kernel.sh" "$flavour" | tail -n 1)
fi

# Objects remember where their sources are, so each checkout has its own.
variant=$flavour${IBTRS_KUNIT:+-kunit}${IBTRS_LINES:+-lines}
checkout=$(sha256sum <<<"$TOP:$kernel" | cut -c1-12)
out=$IBTRS_CACHE/build/$checkout-$variant
# What examples are compiled against is what is built anyway.
[ "$tool" = doctests ] || out+=${tool:+-$tool}
mkdir -p "$out"

with_tools=()
if [ "$flavour" = stock ]; then
	[ -z "$tool" ] || die "$tool is for kernels of our own: FLAVOUR=fast or debug"
	make_stock_tools "$release"
	kernel=$(stock_kdir "$release" | tee -a /dev/stderr | tail -n 1)
	with_tools=(with_stock_tools)
	KERNEL_MAKE_ARGS=(RUSTC=/usr/bin/rustc BINDGEN=/usr/bin/bindgen)
fi

# The code is the same.
[ -z "${IBTRS_LINES:-}" ] || export KRUSTFLAGS=-Cdebuginfo=line-tables-only

# Modules with suites are for tests alone, so clippy may compile them: its warnings cost no build of their own.
suites=()
if [ -n "${IBTRS_KUNIT:-}" ]; then
	suites=(IBTRS_KUNIT=1)
	[ "$flavour" = stock ] || suites+=(CLIPPY=1)
fi

kmake() {
	# The variables of an outer make are not for the kernel's.
	"${with_tools[@]}" env -u MAKEFLAGS -u MFLAGS make -C "$kernel" M="$TOP" MO="$out" -j"$JOBS" \
		"${KERNEL_MAKE_ARGS[@]}" IBTRS_SAMPLES=1 "${suites[@]}" ${W:+W=$W} "$@"
}

build() {
	local target=$MODULES/$variant quiet=(-s)
	[ -z "${IBTRS_STEPS:-}" ] || quiet=()
	kmake "${quiet[@]}" modules
	mkdir -p "$target"
	cp "$out"/*.ko "$target"
	# These kernels are built with information for debuggers: ten times as
	# much as the code, for the guests to load.
	case $flavour in
	stock | versions) strip --strip-debug "$target"/*.ko ;;
	esac
	echo "modules for the $flavour kernel are in $target"
}

# clippy's warnings are errors for us.
clippy() {
	local log=$IBTRS_CACHE/logs/clippy.log nothing_said=$out/nothing-said
	# Unchanged code is not checked again: it must have passed.
	[ -e "$nothing_said" ] || find "$out" -name '*.o' -delete
	rm -f "$nothing_said"
	kmake -s CLIPPY=1 modules 2>&1 | tee "$log" || return 1
	! grep -qE '^(warning|error)' "$log" || return 1
	touch "$nothing_said"
}

doc() {
	kmake -s modules
	"$TOP/scripts/doc.sh" "$kernel" "$out"
}

doctests() {
	kmake -s modules
	"$TOP/scripts/doctests.sh" "$kernel" "$out"
}

rust_analyzer() {
	kmake -s modules
	kmake -s rust-analyzer
	"$TOP/scripts/rust-project-deps.py" "$out/rust-project.json" "$TOP/rust-project.json"
}

case $tool in
'') build ;;
clippy) clippy ;;
doc) doc ;;
doctests) doctests ;;
rust-analyzer) rust_analyzer ;;
*) die "no such tool: $tool" ;;
esac
