#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# check-kdir.sh [--kernel-only] KDIR [BUILT]: lists everything that is missing to
# build the modules for the kernel in KDIR, a line for each.  BUILT is the folder
# to build against if it is another one (kernel-metadata.sh makes it).
# --kernel-only checks the kernel, not the tools.
set -u

kernel_only=
if [ "${1:-}" = --kernel-only ]; then
	kernel_only=1
	shift
fi
kdir=${1:?usage: check-kdir.sh [--kernel-only] KDIR [BUILT]}
built=${2:-$kdir}
bad=0
# Packages of a Debian that has this kernel.
packages=()
missing() {
	printf 'missing: %s\n' "$*" >&2
	bad=1
}

if [ ! -d "$kdir" ]; then
	release=$(sed -n 's,^.*/lib/modules/\([^/]*\)/build/*$,\1,p' <<<"$kdir")
	missing "no kernel build folder at $kdir; name one with KDIR=${release:+, or install linux-headers-$release}"
	exit 1
fi
config=$kdir/include/config/auto.conf
if [ ! -r "$config" ]; then
	missing "$kdir is not a configured kernel (no include/config/auto.conf)"
	exit 1
fi
release=$(cat "$kdir/include/config/kernel.release" 2>/dev/null || echo unknown)

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

# check_tool VARIABLE NAME WANTED PACKAGE...: of the kernel's version, or what it
# makes does not fit the kernel's.
check_tool() {
	local name have want=$3
	name=$(tool "$1" "$2")
	if have=$("$name" --version 2>/dev/null); then
		[ "$have" = "$want" ] ||
			missing "$2 as the kernel's: it was built with '$want', $1=$name is '$have'"
	else
		missing "$2 ($want); name it with $1="
		packages+=("${@:4}")
	fi
}

check_config() {
	[ -n "$(value CONFIG_CRYPTO_LIB_CURVE25519)" ] ||
		echo "note: without CONFIG_CRYPTO_LIB_CURVE25519, which CONFIG_WIREGUARD selects, sessions authenticate by the suite hmac only" >&2
	[ "$(value CONFIG_MODULES)" = y ] || missing "CONFIG_MODULES: the kernel takes no modules"
	[ "$(value CONFIG_BLOCK)" = y ] || missing "CONFIG_BLOCK: the kernel has no block devices"
	[ -n "$(value CONFIG_INFINIBAND)" ] || missing "CONFIG_INFINIBAND: the kernel has no RDMA"
	[ "$(value CONFIG_INFINIBAND_ADDR_TRANS)" = y ] ||
		missing "CONFIG_INFINIBAND_ADDR_TRANS: the kernel has no RDMA connection manager"
	[ -n "$(value CONFIG_CONFIGFS_FS)" ] || missing "CONFIG_CONFIGFS_FS: the kernel has no configfs"
	[ "$(value CONFIG_KEYS)" = y ] || missing "CONFIG_KEYS: the kernel has no keyrings"
	[ -n "$(value CONFIG_CRYPTO_LIB_SHA256)" ] ||
		missing "CONFIG_CRYPTO_LIB_SHA256: the kernel cannot make authentication codes; CONFIG_CRYPTO_SHA256 selects it"
	[ -n "$(value CONFIG_CRC32)" ] || missing "CONFIG_CRC32: the kernel cannot compute checksums"
	[ "$(value CONFIG_PREEMPTION)" != y ] || [ "$(value CONFIG_TASKS_RCU)" = y ] ||
		missing "CONFIG_TASKS_RCU: unloading must wait for preempted tasks; CONFIG_KPROBES or CONFIG_BPF_SYSCALL selects it"
	[ "$(value CONFIG_PREEMPT_COUNT)" = y ] ||
		missing "CONFIG_PREEMPT_COUNT: tasks in RCU read sections must be recognised; CONFIG_PREEMPT or CONFIG_PREEMPT_LAZY selects it"
	[ "$(value CONFIG_RUST)" = y ] || missing "CONFIG_RUST: the kernel was built without Rust"
	# Without it, the modules can be compiled and not loaded.
	[ -r "$kdir/Module.symvers" ] || [ -n "${KBUILD_MODPOST_WARN:-}" ] ||
		missing "$kdir/Module.symvers: build the kernel there first"
	case $release in
	[0-6].* | 7.[0-2].* | 7.[0-2]-*) missing "kernel 7.3 or later (this is $release)" ;;
	esac
}

# Versions of Rust symbols are made of their debugging information.
check_versions() {
	[ "$(value CONFIG_MODVERSIONS)" = y ] || return 0
	[ -x "$built/scripts/gendwarfksyms/gendwarfksyms" ] ||
		missing "$built/scripts/gendwarfksyms/gendwarfksyms, which makes the versions of symbols (CONFIG_MODVERSIONS)"
}

# A distribution's headers are installed, not built; the rest of them can be made.
check_metadata() {
	if [ -r "$built/rust/libkernel.rmeta" ]; then
		# The inputs of our own bindings; a package may have the metadata alone.
		[ -r "$built/source/rust/bindgen_parameters" ] || [ -r "$built/rust/bindgen_parameters" ] ||
			missing "$built/rust/bindgen_parameters, a file of the kernel's source that its headers have not"
		return
	fi
	if [ -e "$kdir/Kbuild" ] || [ -e "$kdir/source/Kbuild" ]; then
		missing "$kdir/rust/libkernel.rmeta: build the kernel there first"
		return
	fi
	missing "the Rust metadata of kernel $release: make it with 'make kernel-metadata KDIR=$kdir' (as root)"
	packages+=("linux-source-$(cut -d. -f1,2 <<<"$release")" flex bison bc libelf-dev libssl-dev pahole xz-utils)
}

check_gcc() {
	local cc want=$1
	cc=$(tool CC "${want%% *}")
	command -v "$cc" >/dev/null && return
	missing "${want%% *}, the kernel's compiler ($want)"
	# x86_64-linux-gnu-gcc-14 is in gcc-14.
	cc=${want%% *}
	packages+=("gcc${cc##*gcc}")
}

check_clang() {
	local have want=$1
	if [ -z "${LLVM:-}" ]; then
		missing "LLVM=1 (or LLVM=-22, say): the kernel was built with clang ('$want')"
		return
	fi
	have=$("$(clang)" --version 2>/dev/null | head -n 1)
	[ "$have" = "$want" ] ||
		missing "clang as the kernel's: it was built with '$want', LLVM=$LLVM is '${have:-not there}'"
}

# Only what this machine does not have.
name_packages() {
	local package wanted=()
	command -v dpkg-query >/dev/null || return 0
	for package in "${packages[@]}"; do
		dpkg-query -W -f '${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed ||
			wanted+=("$package")
	done
	[ "${#wanted[@]}" = 0 ] || printf 'try: apt install %s\n' "${wanted[*]}" >&2
}

check_config
[ -z "$kernel_only" ] || exit $bad
if [ "$(value CONFIG_RUST)" = y ]; then
	check_tool RUSTC rustc "$(value CONFIG_RUSTC_VERSION_TEXT)" rustc rust-src
	check_tool BINDGEN bindgen "$(value CONFIG_BINDGEN_VERSION_TEXT)" bindgen
	check_metadata
	check_versions
fi
want=$(value CONFIG_CC_VERSION_TEXT)
if [ "$(value CONFIG_CC_IS_CLANG)" = y ]; then check_clang "$want"; else check_gcc "$want"; fi
[ "$bad" = 0 ] || name_packages
exit $bad
