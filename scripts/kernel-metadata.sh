#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# kernel-metadata.sh [RELEASE]: makes what a distribution's headers lack for
# building Rust modules: the metadata of the kernel's Rust crates.  Prints the
# folder to build against (KDIR) as the last line.
#
# The metadata comes from the distribution's own source package of the very
# same version, with the configuration and the compilers of the headers.  They
# fit if every Rust symbol that this source defines is one of the running
# kernel's: the names carry a hash of the compiler and of the crate.  The result
# is kept for each release in $IBTRS_METADATA.
set -euo pipefail
trap 'printf "error: %s, line %s: exit status %s\n" "${BASH_SOURCE[0]}" "$LINENO" "$?" >&2' ERR
unset MAKEFLAGS MFLAGS MAKEOVERRIDES MAKELEVEL

release=${1:-$(uname -r)}
headers=${KERNEL_HEADERS:-/lib/modules/$release/build}
cache=${IBTRS_METADATA:-/var/lib/ibtrs/kernel}
jobs=${JOBS:-$(nproc)}

say() { printf '==> %s\n' "$*"; }
die() {
	printf 'error: %s\n' "$*" >&2
	exit 1
}

value() { sed -n "s/^$1=//p" "$headers/.config" | tr -d '"'; }

# The headers' package, in the words of the package manager.
headers_version() {
	dpkg-query -W -f '${Version}\n' "linux-headers-$release" 2>/dev/null ||
		die "no package linux-headers-$release is installed: apt install linux-headers-$release"
}

# The source package's archive, which must be of the headers' version.
find_source() {
	local version package have
	version=$(headers_version)
	package=linux-source-$(cut -d. -f1,2 <<<"${release%%[-+]*}")
	have=$(dpkg-query -W -f '${Version}' "$package" 2>/dev/null || true)
	[ "$have" = "$version" ] ||
		die "$package $version is needed, the source of this very kernel (installed: ${have:-none}): apt install $package=$version"
	source=/usr/src/$package.tar.xz
	[ -r "$source" ] || die "$source is missing, though $package is installed: apt install --reinstall $package"
}

# A compiler of another version makes other symbols.
check_tool() {
	local tool=$1 have want=$2
	have=$("$tool" --version 2>/dev/null | head -n 1) || true
	[ "$have" = "$want" ] ||
		die "$tool of the kernel's version is needed ('$want'; installed: '${have:-none}')"
}

# What building for modules needs of the source; the rest is 1.5 GB.
unpack() {
	tar -C "$work/source" --strip-components=1 --wildcards \
		--exclude='*/Documentation/*/*' --exclude='*/tools/testing/*' --exclude='*/tools/perf/*' \
		--exclude='*/drivers/*.c' --exclude='*/sound/*.c' --exclude='*/fs/*.c' --exclude='*/net/*.c' \
		--exclude='*/drivers/gpu/drm/amd/include/*' --exclude='*/arch/*/boot/dts/*' \
		-xf "$source"
}

# The configuration is the headers', but for the distribution's signing keys,
# which nobody else has.
configure() {
	cp "$headers/.config" "$headers/Module.symvers" "$work/build/"
	[ ! -e "$headers/.kernelvariables" ] || cp "$headers/.kernelvariables" "$work/build/"
	# For the types of modules.
	[ ! -e "$headers/vmlinux" ] || cp "$headers/vmlinux" "$work/build/"
	"$work/source/scripts/config" --file "$work/build/.config" \
		--set-str MODULE_SIG_KEY '' --set-str SYSTEM_TRUSTED_KEYS '' -d MODULE_SIG_ALL
	kmake olddefconfig
	local changed
	changed=$(diff <(options "$headers/.config") <(options "$work/build/.config") | grep '^[<>]' || true)
	[ -z "$changed" ] || die "the source gives another configuration than the headers: $(head -n 3 <<<"$changed" | tr '\n' ' ')"
}

options() { grep -E '^CONFIG_' "$1" | grep -vE '^CONFIG_(MODULE_SIG_KEY|SYSTEM_TRUSTED_KEYS|MODULE_SIG_ALL)='; }

kmake() { make -s -C "$work/source" O="$work/build" -j"$jobs" "$@"; }

# Symbols of the metadata that the kernel does not have; none, if they fit.
strangers() {
	sed -n 's/^EXPORT_SYMBOL_RUST_GPL(\(.*\));.*/\1/p' "$work"/build/rust/exports_*_generated.h | sort -u >"$work/ours"
	[ -s "$work/ours" ] || die "the source has made no Rust symbols: see $work/build/rust"
	awk '{ print $2 }' "$headers/Module.symvers" | sort -u >"$work/kernels"
	comm -23 "$work/ours" "$work/kernels"
}

check_symbols() {
	local first count
	strangers >"$work/strangers"
	count=$(wc -l <"$work/strangers")
	first=$(head -n 1 "$work/strangers")
	[ "$count" = 0 ] ||
		die "the Rust metadata does not fit the kernel $release: $count of $(wc -l <"$work/ours") symbols are not the kernel's, $first among them (other compiler, other source, or other configuration)"
}

# In its final place, as generated files name it.
build() {
	rm -rf "$work"
	mkdir -p "$work/source" "$work/build"
	say "Unpacking the source of $release"
	unpack
	say "Configuring it as $headers"
	configure
	say "Making the Rust metadata: two minutes on two processors"
	kmake modules_prepare
	check_symbols
	touch "$work/.done"
}

[ -r "$headers/.config" ] || die "no kernel headers at $headers: apt install linux-headers-$release"
[ "$(value CONFIG_RUST)" = y ] || die "kernel $release was built without Rust (CONFIG_RUST)"
if [ -e "$headers/rust/libkernel.rmeta" ]; then
	echo "$headers"
	exit 0
fi
work=$cache/$release
if [ ! -e "$work/.done" ]; then
	find_source
	check_tool rustc "$(value CONFIG_RUSTC_VERSION_TEXT)"
	check_tool bindgen "$(value CONFIG_BINDGEN_VERSION_TEXT)"
	mkdir -p "$cache"
	exec 9>"$cache/.lock"
	flock 9
	[ -e "$work/.done" ] || build
fi
echo "$work/build"
