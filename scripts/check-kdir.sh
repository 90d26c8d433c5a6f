#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# check-kdir.sh KDIR: says what is missing for building the modules against
# the kernel in KDIR, a line for each thing, all at once.
set -u

kdir=${1:?usage: check-kdir.sh KDIR}
bad=0
missing() {
	printf 'missing: %s\n' "$*" >&2
	bad=1
}

if [ ! -d "$kdir" ]; then
	missing "no kernel build folder at $kdir; name one with KDIR="
	exit 1
fi
config=$kdir/include/config/auto.conf
if [ ! -r "$config" ]; then
	missing "$kdir is not a configured kernel (no include/config/auto.conf)"
	exit 1
fi

value() { sed -n "s/^$1=//p" "$config" | tr -d '"'; }
tool() { printf '%s' "${!1:-$2}"; }
# The compiler that LLVM= stands for: a suffix, a folder, or just 1.
clang() {
	case ${LLVM:-} in
	-*) printf 'clang%s' "$LLVM" ;;
	*/) printf '%sclang' "$LLVM" ;;
	*) printf 'clang' ;;
	esac
}

[ "$(value CONFIG_MODULES)" = y ] || missing "CONFIG_MODULES: the kernel takes no modules"
[ "$(value CONFIG_BLOCK)" = y ] || missing "CONFIG_BLOCK: the kernel has no block devices"
[ -n "$(value CONFIG_INFINIBAND)" ] || missing "CONFIG_INFINIBAND: the kernel has no RDMA"
[ "$(value CONFIG_INFINIBAND_ADDR_TRANS)" = y ] ||
	missing "CONFIG_INFINIBAND_ADDR_TRANS: the kernel has no RDMA connection manager"
[ -r "$kdir/Module.symvers" ] || missing "$kdir/Module.symvers: build the kernel there first"

release=$(cat "$kdir/include/config/kernel.release" 2>/dev/null || echo unknown)
case $release in
[0-6].* | 7.[0-2].* | 7.[0-2]-*) missing "kernel 7.3 or later (this is $release)" ;;
esac

if [ "$(value CONFIG_RUST)" != y ]; then
	missing "CONFIG_RUST: the kernel was built without Rust"
else
	rustc=$(tool RUSTC rustc)
	want=$(value CONFIG_RUSTC_VERSION_TEXT)
	if have=$("$rustc" --version 2>/dev/null); then
		[ "$have" = "$want" ] ||
			missing "rustc as the kernel's: it was built with '$want', RUSTC=$rustc is '$have'"
	else
		missing "rustc ($want); name it with RUSTC="
	fi
	bindgen=$(tool BINDGEN bindgen)
	want=$(value CONFIG_BINDGEN_VERSION_TEXT)
	if have=$("$bindgen" --version 2>/dev/null); then
		[ "$have" = "$want" ] ||
			missing "bindgen as the kernel's: it was built with '$want', BINDGEN=$bindgen is '$have'"
	else
		missing "bindgen ($want); name it with BINDGEN="
	fi
	[ -r "$kdir/rust/libkernel.rmeta" ] || missing "$kdir/rust/libkernel.rmeta: build the kernel there first"
fi
want=$(value CONFIG_CC_VERSION_TEXT)
if [ "$(value CONFIG_CC_IS_CLANG)" != y ]; then
	missing "a kernel built with clang: the modules' C code becomes part of their Rust code (this one: '$want')"
elif [ -z "${LLVM:-}" ]; then
	missing "LLVM=1 (or LLVM=-22, say): the kernel was built with clang ('$want')"
else
	have=$("$(clang)" --version 2>/dev/null | head -n 1)
	[ "$have" = "$want" ] ||
		missing "clang as the kernel's: it was built with '$want', LLVM=$LLVM is '${have:-not there}'"
fi
# Versions of symbols would have to be made of the Rust code's debugging information.
[ "$(value CONFIG_MODVERSIONS)" != y ] ||
	missing "a kernel without CONFIG_MODVERSIONS: the modules export Rust symbols, which get no versions"
exit $bad
