#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# kernel-metadata.sh KDIR: makes the metadata of the kernel's Rust crates, which
# Rust modules need and a distribution's kernel headers lack.  Prints the folder
# to build against as the last line.
# kernel-metadata.sh --find KDIR: prints that folder if it exists already,
# otherwise KDIR itself.
#
# The metadata is made from the distribution's source package of exactly the same
# version, with the headers' configuration and the kernel's compilers.  It fits
# if the kernel has every Rust symbol that this source defines: their names
# contain a hash of the compiler and the crate.  The result is kept in
# $IBTRS_METADATA, a folder for each kernel release; so is a refusal, which would
# take as long to come to again, until something that it depends on changes.
#
# Status 77, at which DKMS skips the kernel: the metadata is refused, the kernel's source
# or its compilers are not installed, the disk has no room, or the folder is not ours.
set -Eeuo pipefail
trap 'printf "error: %s, line %s: exit status %s\n" "${BASH_SOURCE[0]}" "$LINENO" "$?" >&2' ERR
# Variables of an outer make are not for the kernel's, but for the tools.
unset MAKEFLAGS MFLAGS MAKEOVERRIDES MAKELEVEL
# Users build against what root has made.
umask 022

cache=$(realpath -m "${IBTRS_METADATA:-/var/lib/ibtrs/kernel}")
# Where the distribution's source packages are.
sources=${IBTRS_KERNEL_SOURCES:-/usr/src}
jobs=${JOBS:-$(nproc)}
# The source and what is built of it, before most of that is removed again.
needed_mib=${IBTRS_METADATA_MIB:-800}

say() { printf '==> %s\n' "$*"; }
die() {
	printf 'error: %s\n' "$*" >&2
	exit "${status:-1}"
}
# As long as nothing changes that this depends on, the answer is the same.
refuse() {
	printf '%s\n' "$(state)" "$*" 2>/dev/null >"$refusal" || rm -f "$refusal"
	status=77 die "$*"
}

value() { sed -n "s/^$1=//p" "$headers/.config" | tr -d '"'; }

# Made before, and for headers like these: a new version of a package may have
# the same kernel release.
is_of_this_source() {
	[ -n "$release" ] && [ -e "$work/.done" ] && cmp -s "$headers/.config" "$work/config" &&
		[ "$(headers_version)" = "$(cat "$work/version" 2>/dev/null)" ]
}

# All that a refusal depends on, with rustc and bindgen, which were checked to be the kernel's.
state() {
	local cc compiler
	cc=$(value CONFIG_CC_VERSION_TEXT)
	{
		cat "$headers/.config" "$headers/Module.symvers" "$archive"
		echo "$version"
		for compiler in "${cc%% *}" "clang${LLVM:-}" clang; do
			"$compiler" --version 2>/dev/null || true
		done
	} | sha256sum
}

check_refusal() {
	[ -e "$refusal" ] && [ "$(sed -n 1p "$refusal")" = "$(state)" ] || return 0
	status=77 die "$(sed -n 2p "$refusal") (found out before; to try it again, remove $refusal)"
}

is_made() { is_of_this_source && cmp -s "$headers/Module.symvers" "$work/build/Module.symvers"; }

# A folder that the caller names as the cache may have other files.
is_ours() { [ -e "$1/.ibtrs-metadata" ] || [ -e "$1/.done" ]; }
# This may be interrupted: what says that the metadata is whole goes first, and whose it is last.
remove() {
	[ -e "$1" ] || return 0
	touch "$1/.ibtrs-metadata"
	rm -f "$1/.done"
	find "$1" -mindepth 1 ! -name .ibtrs-metadata -delete
	rm -r "$1"
}

# check_space FOLDER
check_space() {
	local free
	free=$(df --output=avail -m "$1" | tail -n 1)
	[ "$free" -ge "$needed_mib" ] || status=77 \
		die "$1 has ${free// /} MiB free, and $needed_mib are needed to make the Rust metadata of kernel $release"
}

# Unpacked will do: headers have DKMS build for them while they are configured.
installed_version() {
	{ dpkg-query -W -f '${db:Status-Status} ${Version}\n' "$1" 2>/dev/null || true; } |
		sed -nE 's/^(installed|unpacked|half-configured|triggers-awaited|triggers-pending) //p'
}

headers_version() { installed_version "linux-headers-$release"; }

find_source() {
	local have
	command -v dpkg-query >/dev/null ||
		die "$headers has no Rust metadata (rust/libkernel.rmeta), and only Debian's packages are known to this script as a source of it"
	version=$(headers_version)
	[ -n "$version" ] || status=77 die "no package linux-headers-$release is installed, so the version of its source is not known"
	package=linux-source-$(cut -d. -f1,2 <<<"${release%%[-+]*}")
	have=$(installed_version "$package")
	[ "$have" = "$version" ] || status=77 \
		die "$package $version is needed, the source of kernel $release (installed: ${have:-none}): apt install $package=$version"
	archive=$sources/$package.tar.xz
	[ -r "$archive" ] || status=77 die "$archive is missing, though $package is installed: apt install --reinstall $package"
}

# A compiler of another version makes other symbols.
check_tool() {
	local have want=$2
	have=$("$1" --version 2>/dev/null | head -n 1) || true
	[ "$have" = "$want" ] || status=77 die "$1 has to be the kernel's: kernel $release was built with '$want', this is '${have:-not installed}'"
}

check_programs() {
	local program missing=() btf
	btf=$(value CONFIG_DEBUG_INFO_BTF)
	for program in make flex bison bc xz ${btf:+pahole}; do
		command -v "$program" >/dev/null || missing+=("$program")
	done
	[ -e "${RUST_LIB_SRC:-$("$rustc" --print sysroot)/lib/rustlib/src/rust/library}/core/src/lib.rs" ] ||
		missing+=(rust-src)
	[ "${#missing[@]}" = 0 ] || status=77 die "these are missing: ${missing[*]}"
}

# Most of the source is not needed, and takes minutes to unpack.
unpack() {
	tar -C "$work/source" --strip-components=1 --no-same-owner --anchored --wildcards \
		--exclude="$package/Documentation/*/*" \
		--exclude="$package/tools/testing/*" --exclude="$package/tools/perf/*" \
		--exclude="$package/drivers/*.c" --exclude="$package/sound/*.c" \
		--exclude="$package/fs/*.c" --exclude="$package/net/*.c" \
		--exclude="$package/drivers/gpu/drm/*/include/*" \
		--exclude="$package/arch/*/boot/dts/*" \
		-xf "$archive"
}

# What the distribution alone has, or what its machine had that built the
# kernel; no code depends on it.  The C compiler's text changes with each revision
# of its package; its version is an option of its own.
of_the_builder='^CONFIG_(MODULE_SIG_KEY|SYSTEM_TRUSTED_KEYS|MODULE_SIG_ALL|OPENSSL_SUPPORTS_[A-Z_]*|CC_VERSION_TEXT)='
options() { grep -E '^CONFIG_' "$1" | grep -vE "$of_the_builder"; }

configure() {
	cp "$headers/.config" "$headers/Module.symvers" "$work/build/"
	# Debian names the compiler and the release there.
	[ ! -e "$headers/.kernelvariables" ] || cp "$headers/.kernelvariables" "$work/build/"
	# For the types of modules (BTF).
	[ ! -e "$headers/vmlinux" ] || cp "$headers/vmlinux" "$work/build/"
	"$work/source/scripts/config" --file "$work/build/.config" \
		--set-str MODULE_SIG_KEY '' --set-str SYSTEM_TRUSTED_KEYS '' -d MODULE_SIG_ALL
	kmake olddefconfig
	local changed
	changed=$(diff <(options "$headers/.config") <(options "$work/build/.config") | sed -n 's/^[<>] //p') || true
	# Not remembered: any tool may be the cause.
	[ -z "$changed" ] || status=77 \
		die "the source does not take the configuration of kernel $release: $(head -n 3 <<<"$changed" | tr '\n' ' ')come out otherwise$(toolchain_fault)"
}

# toolchain_fault: what the kernel's own check of the Rust toolchain finds wrong, if anything.
toolchain_fault() {
	local said
	said=$(kmake rustavailable 2>&1 | sed -n 's/^\*\*\* *\(.\)/\1/p' | head -n 4 | tr '\n' ' ') || true
	[ -z "$said" ] || printf "; the kernel's check of the Rust toolchain says: %s" "${said% }"
}

kmake() {
	make -s -C "$work/source" O="$work/build" -j"$jobs" ${LLVM:+"LLVM=$LLVM"} \
		RUSTC="$rustc" HOSTRUSTC="$rustc" BINDGEN="$bindgen" "$@"
}

# Every Rust symbol that the metadata speaks of has to be the kernel's.
check_symbols() {
	local count
	sed -n 's/^EXPORT_SYMBOL_RUST_GPL(\(.*\));.*/\1/p' "$work"/build/rust/exports_*_generated.h |
		sort -u >"$work/symbols"
	[ -s "$work/symbols" ] || die "the source of kernel $release defines no Rust symbols"
	awk '{ print $2 }' "$headers/Module.symvers" | sort -u |
		comm -23 "$work/symbols" - >"$work/strangers"
	count=$(wc -l <"$work/strangers")
	[ "$count" = 0 ] ||
		refuse "the Rust metadata does not fit kernel $release: $count of $(wc -l <"$work/symbols") symbols are not the kernel's, $(head -n 1 "$work/strangers") among them (another compiler, another source, or another configuration)"
}

# The version magic of modules is made of these two.
take_release() {
	cp "$headers/include/generated/utsrelease.h" "$work/build/include/generated/"
	cp "$headers/include/config/kernel.release" "$work/build/include/config/"
}

# Modules need the headers and the rules of the build, not the sources.
prune() {
	local folder=$work/source arch
	rm -rf "$folder"/{Documentation,drivers,sound,fs,net,samples,LICENSES} "$work/build/rust/host"
	for arch in "$folder"/arch/*/; do
		[ -e "$work/build/arch/$(basename "$arch")" ] || rm -rf "$arch"
	done
	find "$work/build/rust" -name '*.o' -delete
}

# Kernels that are gone need no metadata.
forget_removed() {
	local folder file
	for folder in "$cache"/*/; do
		is_ours "$folder" || continue
		[ "$folder" = "$work/" ] || [ -e "/lib/modules/$(basename "$folder")" ] || remove "$folder"
	done
	for file in "$cache"/.refused-*; do
		[ -e "/lib/modules/${file#"$cache/.refused-"}" ] || rm -f "$file"
	done
}

build() {
	mkdir -p "$work"
	touch "$work/.ibtrs-metadata"
	mkdir "$work/source" "$work/build"
	say "Unpacking the source of kernel $release"
	unpack
	say "Configuring it like $headers"
	configure
	say "Making the Rust metadata, which takes some minutes"
	kmake modules_prepare
	check_symbols
	take_release
	prune
	cp "$headers/.config" "$work/config"
	echo "$version" >"$work/version"
	sync -f "$work"
	touch "$work/.done"
}

# Fails with one line, and leaves nothing behind.
make_metadata() {
	find_source
	rustc=${RUSTC:-rustc}
	bindgen=${BINDGEN:-bindgen}
	check_tool "$rustc" "$(value CONFIG_RUSTC_VERSION_TEXT)"
	check_tool "$bindgen" "$(value CONFIG_BINDGEN_VERSION_TEXT)"
	check_programs
	mkdir -p "$cache" 2>/dev/null || true
	[ -w "$cache" ] || die "cannot write to $cache: run this as root, or name another folder with IBTRS_METADATA="
	exec 9>"$cache/.lock"
	flock 9
	! is_made || return 0
	if is_of_this_source; then
		# Only the kernel's list of symbols is another one.
		check_symbols
		cp "$headers/Module.symvers" "$work/build/"
		return
	fi
	[ ! -e "$work" ] || is_ours "$work" || rmdir "$work" 2>/dev/null || status=77 \
		die "$work is there already, and is no metadata: name another folder with IBTRS_METADATA="
	check_refusal
	remove "$work"
	forget_removed
	check_space "$cache"
	trap '[ -e "$work/.done" ] || remove "$work"' EXIT
	build
	rm -f "$refusal"
}

find=
if [ "${1:-}" = --find ]; then
	find=1
	shift
fi
headers=${1:?usage: kernel-metadata.sh [--find] KDIR}
release=$(cat "$headers/include/config/kernel.release" 2>/dev/null || true)
work=$cache/$release
refusal=$cache/.refused-$release
if [ -e "$headers/rust/libkernel.rmeta" ]; then
	echo "$headers"
elif [ -n "$find" ]; then
	if is_made; then echo "$work/build"; else echo "$headers"; fi
else
	[ -r "$headers/.config" ] ||
		die "no kernel headers at $headers${release:+: apt install linux-headers-$release}"
	[ "$(value CONFIG_RUST)" = y ] || die "kernel $release was built without Rust (CONFIG_RUST)"
	[ "$(value CONFIG_CC_IS_CLANG)" != y ] || LLVM=${LLVM:-1}
	is_made || make_metadata
	echo "$work/build"
fi
