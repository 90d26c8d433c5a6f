#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# kernel-source.sh: prints, as its last line, the folder of the kernel source to
# build: the user's own (KERNEL_SRC=), or the newest linux-source package that apt
# offers, fetched and unpacked once.
# shellcheck source=scripts/env.sh
. "$(dirname "$0")/env.sh"
# shellcheck source=scripts/apt-suite.sh
. "$TOP/scripts/apt-suite.sh"

# The suite that carries kernels newer than the release's own, and the
# packages to try there.
SUITE=trixie-backports
PACKAGES=(linux-source-7.3 linux-source)

if [ -n "${KERNEL_SRC:-}" ]; then
	[ -f "$KERNEL_SRC/Kbuild" ] || die "KERNEL_SRC=$KERNEL_SRC is not a kernel source tree"
	echo "$KERNEL_SRC"
	exit 0
fi

pointer=$IBTRS_CACHE/src/current
if [ -e "$pointer/Kbuild" ]; then
	readlink -f "$pointer"
	exit 0
fi
mkdir -p "$IBTRS_CACHE/src"
exec 9>"$IBTRS_CACHE/src/.lock"
flock 9

new=$IBTRS_CACHE/src/new
debs=$IBTRS_CACHE/src/deb

fetch() {
	local package
	rm -rf "$debs"
	mkdir -p "$debs"
	open_suite "$SUITE"
	cd "$debs"
	for package in "${PACKAGES[@]}"; do
		apt-get "${APT_SUITE[@]}" download "$package" && return
	done
	return 1
}

unpack() {
	rm -rf "$new"
	mkdir -p "$new"
	dpkg -x "$debs"/linux-source-*.deb "$debs/unpacked"
	xz -T0 -dc "$debs"/unpacked/usr/src/linux-source-*.tar.xz |
		tar -C "$new" --strip-components=1 --no-same-owner -x
	rm -rf "$debs"
}

if [ ! -e "$pointer/Kbuild" ]; then
	with_progress "Fetching the kernel source from $SUITE" 10 fetch
	with_progress "Unpacking the kernel source" 10 unpack
	version=$(make -s -C "$new" kernelversion)
	rm -rf "$IBTRS_CACHE/src/linux-$version"
	mv "$new" "$IBTRS_CACHE/src/linux-$version"
	ln -sfn "linux-$version" "$pointer"
fi
readlink -f "$pointer"
