#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# root-disk.sh FILES UUID FOLDER: makes FOLDER/data.img, an ext4 with a Debian in which our packages
# are installed and the files below FILES lie, and FOLDER/initrd.img, which this Debian's
# update-initramfs has made.  FILES belong to root there.
# shellcheck source=scripts/env.sh
. "$(dirname "$0")/env.sh"
# shellcheck source=scripts/stock-tools.sh
. "$TOP/scripts/stock-tools.sh"

SIZE_MB=1024
# What builds packages and modules, most of the tree.
LEFT_OUT=('./root/*' './tmp/*' ./.base ./.checkout ./.installed './usr/src/*' ./usr/include './usr/lib/llvm*'
	./usr/lib/rustlib ./usr/lib/gcc ./usr/libexec/gcc './usr/lib/*/libLLVM*' './usr/lib/*/libclang*'
	'./usr/lib/*/librustc*' './usr/lib/*/lib*san.so*' './usr/lib/*/*.a' './usr/bin/*-linux-gnu-*' ./usr/bin/cargo
	'./usr/bin/rust*' './var/lib/dkms/*' './var/lib/apt/*' './var/cache/*')

files=$1 uuid=$2 folder=$3
root=$folder/root

copy_tree() {
	local without=("${LEFT_OUT[@]/#/--exclude=}")
	as_root mkdir -p "$root"
	as_root tar -C "$tree" --one-file-system "${without[@]}" -c . | as_root tar -C "$root" -x
	as_root cp -r --preserve=mode "$files/." "$root"
}

# update_initramfs -c or -u
update_initramfs() {
	# shellcheck disable=SC2016 # for the shell inside
	with_own_mounts sh -euc '
		mount -t proc proc "$1/proc"
		mount --rbind /dev "$1/dev"
		exec chroot "$1" env -i HOME=/root LC_ALL=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin \
			update-initramfs "$3" -k "$2"' sh "$root" "$release" "$1" </dev/null
}

make_initramfs() {
	update_initramfs -c
	as_root cp "$root/boot/initrd.img-$release" "$folder/initrd.img"
}

# An initramfs that maps the root is not exchanged for one that cannot.
keep_initramfs() {
	local modules=$root/lib/modules/$release/updates
	as_root mv "$modules" "$root/lost"
	if update_initramfs -u; then return 1; fi
	as_root mv "$root/lost" "$modules"
	as_root cmp "$root/boot/initrd.img-$release" "$folder/initrd.img"
}

make_disk() {
	as_root /sbin/mkfs.ext4 -q -F -U "$uuid" -d "$root" "$folder/data.img" "${SIZE_MB}M"
	as_root chown "$(id -u):$(id -g)" "$folder/data.img" "$folder/initrd.img"
}

remove_root() {
	nothing_mounted_below "$root"
	as_root rm -rf --one-file-system "$root"
}

tree=$("$TOP/scripts/package-tree.sh" | tail -n 1)
release=$(cat "$("$TOP/scripts/stock-kernel.sh" | tail -n 1)/include/config/kernel.release")
mkdir -p "$folder"
remove_root
trap remove_root EXIT
with_progress "Copying a Debian for a root disk" 1 copy_tree
with_progress "Making its initramfs" 1 make_initramfs
with_progress "Keeping it without modules" 1 keep_initramfs
with_progress "Making the disk" 1 make_disk
