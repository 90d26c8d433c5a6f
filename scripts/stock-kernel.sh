#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# stock-kernel.sh: fetches Debian's own kernel image and modules, once, and
# prints their folder as the last line.  It looks as if the kernel had been
# built there, and has the part of the modules that guests may want.
# stock-kernel.sh --release: prints only the release of that kernel, or of the one
# that would be fetched.
# shellcheck source=scripts/env.sh
. "$(dirname "$0")/env.sh"
# shellcheck source=scripts/stock-tools.sh
. "$TOP/scripts/stock-tools.sh"

# What guests need before they have /lib/modules.
BOOT=(virtio_net virtio_blk 9pnet_virtio 9p configfs overlay)
# What they may ask for, with all that it depends on; folders of modules.
TAKEN=(arch/x86/crypto crypto lib fs/9p fs/configfs fs/ext4 fs/xfs fs/overlayfs fs/autofs net/9p net/sched
	drivers/block drivers/infiniband/core drivers/infiniband/sw drivers/md drivers/nvme
	drivers/net/dummy.ko drivers/net/macsec.ko drivers/net/veth.ko drivers/net/virtio_net.ko
	net/ipv4/esp4.ko net/xfrm)

# Made afresh when this changes.
key=$(sha256sum "$0" | cut -c1-12)
pointer=$IBTRS_CACHE/kernel/stock-$key
new=$pointer.new
# The release, for those who prepare for the kernel while it is fetched.
noted=$IBTRS_CACHE/kernel/stock.release

# The image's package and those of the same kernel that it depends on.
packages() {
	echo "linux-image-$1"
	apt-cache "${APT_SUITE[@]}" show "linux-image-$1" | sed -n 's/^Depends: //p' |
		grep -oE 'linux-[a-z]+-[0-9][^ ,]*' | grep -F -- "-$1"
}

newest_release() {
	apt-cache "${APT_SUITE[@]}" show linux-image-amd64 |
		sed -n 's/^Depends:.*linux-image-\([0-9][^ ,]*\).*/\1/p' | head -n 1 | grep .
}

fetch() {
	local release package
	rm -rf "$new"
	mkdir -p "$new/deb" "$new/root/usr/lib" "$new/include/config"
	ln -s usr/lib "$new/root/lib"
	open_suite "$STOCK_SUITE"
	release=$(newest_release) || die "found no kernel in $STOCK_SUITE"
	cd "$new/deb"
	mapfile -t packages < <(packages "$release")
	apt-get "${APT_SUITE[@]}" download "${packages[@]}"
	for package in *.deb; do
		# Some have their files in /lib, which is a link.
		dpkg-deb --fsys-tarfile "$package" | tar -C "$new/root" --no-same-owner --keep-directory-symlink -x
	done
	echo "$release" >"$new/include/config/kernel.release"
}

# The files of modules and of those that they depend on, in an order in which
# they can be loaded.
files_of() {
	modprobe -d "$new/root" -S "$release" --show-depends -a "$@" |
		awk '$1 == "insmod" && !seen[$2]++ { print $2 }'
}

# wanted FOLDER...: the names of the modules there.
wanted() {
	local folder
	for folder in "$@"; do
		find "$modules/kernel/$folder"* -name '*.ko*' -printf '%f\n' | sed 's/\.ko.*//'
	done
}

# Modules are as Debian packed them, often compressed; in a guest that is
# emulated that would cost time with each one.
take() {
	local file name
	while read -r file; do
		name=${file##*/}
		case $name in
		*.ko) cp "$file" "$new/kernel/$name" ;;
		*.ko.xz) xz -dc "$file" >"$new/kernel/${name%.xz}" ;;
		*) die "do not know how to unpack $file" ;;
		esac
		echo "kernel/${name%%.*}.o" >>"$new/modules.order"
	done
}

names() { sed 's,.*/,,; s/\.ko.*/.ko/'; }

arrange() {
	local release modules image all
	release=$(cat "$new/include/config/kernel.release")
	modules=$new/root/usr/lib/modules/$release
	mkdir -p "$new/kernel" "$new/arch/x86/boot"
	for image in "$modules/vmlinuz" "$new/root/boot/vmlinuz-$release"; do
		[ ! -e "$image" ] || cp "$image" "$new/arch/x86/boot/bzImage"
	done
	[ -e "$new/arch/x86/boot/bzImage" ] || die "the packages of $release have no kernel image"
	depmod -b "$new/root" "$release"
	mapfile -t all < <(wanted "${TAKEN[@]}" | sort -u)
	files_of "${all[@]}" | take
	files_of "${BOOT[@]}" | names >"$new/modules.boot"
	cp "$modules"/modules.builtin* "$new"
	rm -rf "$new/deb" "$new/root"
	touch "$new/.built"
}

export PATH=$PATH:/usr/sbin:/sbin
mkdir -p "$IBTRS_CACHE/kernel"
if [ "${1:-}" = --release ] && [ -e "$pointer/.built" ]; then
	cat "$pointer/include/config/kernel.release"
	exit 0
fi
exec 9>"$IBTRS_CACHE/kernel/.stock.lock"
if [ "${1:-}" = --release ]; then
	# Later the suite may have another one.
	if [ -z "$(find "$noted" -mmin -60 2>/dev/null)" ]; then
		flock 9
		open_suite "$STOCK_SUITE" >&2
		newest_release >"$noted" || die "found no kernel in $STOCK_SUITE"
	fi
	cat "$noted"
	exit 0
fi
flock 9
if [ ! -e "$pointer/.built" ]; then
	with_progress "Fetching Debian's kernel from $STOCK_SUITE" 20 fetch
	with_progress "Unpacking its modules" 10 arrange
	release=$(cat "$new/include/config/kernel.release")
	rm -rf "$IBTRS_CACHE/kernel/$release-stock-$key"
	mv "$new" "$IBTRS_CACHE/kernel/$release-stock-$key"
	ln -sfn "$release-stock-$key" "$pointer"
fi
readlink -f "$pointer"
