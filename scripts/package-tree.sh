#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# package-tree.sh: makes a Debian 13 for guests, with our packages installed and the modules built by
# DKMS for Debian's own kernel.  Prints its folder as the last line.  The dependencies of the
# packages are installed once, the packages themselves again whenever their source changes.
# shellcheck source=scripts/env.sh
. "$(dirname "$0")/env.sh"
# shellcheck source=scripts/stock-tools.sh
. "$TOP/scripts/stock-tools.sh"

# What guests need, what ibtrs-dkms depends on, and what builds the packages.
PACKAGES=(bash-static busybox-static python3-minimal procps fio iproute2 rdma-core kmod
	systemd systemd-sysv udev dbus util-linux-extra e2fsprogs keyutils initramfs-tools
	dkms openssl zstd debhelper dh-dkms cargo openssh-server nftables)
# What goes into the packages.
SOURCES=(COPYING Cargo.lock Cargo.toml Kbuild Makefile README.md Documentation ibmsg ibnbd ibtrs-client ibtrs-server rust
	scripts tools/debian tools/examples tools/firewall tools/grafana tools/ibmsg tools/ibnbd tools/initramfs tools/sim tools/systemd tools/udev)
# The crates of the command, and what was compiled of them: that is kept.
VENDOR=$IBTRS_CACHE/vendor-$(cat "$TOP/Cargo.lock" "$TOP/scripts/vendor.py" | sha256sum | cut -c1-12)

# Each checkout has one of its own, as its guests read it.
trees=$IBTRS_CACHE/debian-$STOCK_RELEASE-packages-
tree=$trees$(basename "$MODULES")

# inside COMMAND: as root in the tree, with the cache of metadata where it is here.
inside() {
	# shellcheck disable=SC2016 # for the shell inside
	with_own_mounts sh -euc '
		mount -t proc proc "$1/proc"
		mount --rbind /dev "$1/dev"
		mkdir -p "$1$2"
		mount --bind "$2" "$1$2"
		exec chroot "$1" env -i HOME=/root LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
			PATH=/usr/sbin:/usr/bin:/sbin:/bin JOBS="$3" bash -euc "$4"' \
		sh "$tree" "$STOCK_METADATA" "$JOBS" "$1" </dev/null
}

files() { git -C "$TOP" ls-files -z --cached --others --exclude-standard "${SOURCES[@]}"; }
# Of names and contents; a file that was deleted here is one less.
source_key() {
	cd "$TOP"
	files | LC_ALL=C sort -z | { xargs -0 sha256sum 2>/dev/null || true; } | sha256sum | cut -c1-12
}

# The modules of the kernel that guests boot, as they have them otherwise: some
# hundred, unpacked.  The whole package would cost a guest minutes, in depmod alone.
take_kernel() {
	local folder=$tree/usr/lib/modules/$release
	as_root mkdir -p "$folder/kernel"
	as_root cp "$kernel"/kernel/*.ko "$folder/kernel"
	as_root cp "$kernel"/modules.order "$kernel"/modules.builtin* "$folder"
	as_root depmod -b "$tree" "$release"
}

make_base() {
	local packages
	mapfile -t packages < <(stock_packages "$release")
	make_tree "$tree" "${PACKAGES[@]}" "${packages[@]}"
	# What systemd starts is what it starts in the other guests.
	as_root rm -rf --one-file-system "$tree/etc/systemd/system"
	as_root cp -a "$guest/etc/systemd/system" "$tree/etc/systemd/"
	as_root mkdir -p "$tree/mnt/share" "$tree/var/lib/ibtrs"
	as_root sh -c ": > '$tree/etc/fstab' && echo uninitialized > '$tree/etc/machine-id'"
	take_kernel
	as_root sh -c "echo '$base_key' > '$tree/.base'"
	note_checkout
}

# take_base: takes the tree of another checkout, with what Cargo has compiled there.  If that checkout
# is gone, nobody else wants its tree; if not, the guests only read it.
take_base() {
	local other found=
	for other in "$trees"*; do
		# An interrupted copy has that name.
		[[ $other != *.new && $(cat "$other/.base" 2>/dev/null) = "$base_key" ]] || continue
		found=$other
		! is_left "$other" || break
	done
	[ -n "$found" ] || return 1
	nothing_mounted_below "$found"
	as_root rm -rf --one-file-system "$tree" "$tree.new" || return 1
	if ! is_left "$found"; then
		as_root cp -a --reflink=auto "$found" "$tree.new" || return 1
		found=$tree.new
	fi
	as_root mv "$found" "$tree" && note_checkout
}

# Whether the checkout is gone that the tree was made for.
is_left() {
	local checkout
	checkout=$(cat "$1/.checkout" 2>/dev/null) && [ ! -e "$checkout" ]
}

note_checkout() { printf '%s\n' "$TOP" | as_root tee "$tree/.checkout" >/dev/null; }

remove_left() {
	local other
	for other in "$trees"*; do
		! is_left "$other" || {
			nothing_mounted_below "$other"
			as_root rm -rf --one-file-system "$other"
		}
	done
}

make_vendor() {
	rm -rf "$VENDOR.new"
	"$TOP/scripts/vendor.py" "$VENDOR.new"
	mv "$VENDOR.new" "$VENDOR"
}

# The packages are built there, and replace what was installed before.
install_packages() {
	local folder=$tree/root/ibtrs
	nothing_mounted_below "$tree"
	as_root rm -rf --one-file-system "$folder" "$tree/.installed"
	as_root mkdir -p "$folder"
	# As new as they are here: Cargo goes by the times of files, and keeps what it has compiled
	# after a file was changed elsewhere.
	files | tar -C "$TOP" --null --no-recursion --ignore-failed-read --files-from=- -c |
		as_root tar -C "$folder" --no-same-owner --touch -x
	as_root cp -a "$VENDOR" "$folder/vendor"
	inside '
		export IBTRS_CACHE=/root/ibtrs/cache IBTRS_VENDOR=/root/ibtrs/vendor CARGO_TARGET_DIR=/root/cargo
		make -C /root/ibtrs deb
		dpkg --purge ibtrs-dkms ibtrs-tools libibmsg-dev
		mkdir -p /var/lib/ibtrs
		ln -sfn "'"$STOCK_METADATA"'" /var/lib/ibtrs/kernel
		apt-get -o Dpkg::Options::=--force-unsafe-io install -qy /root/ibtrs/build/*.deb
		dkms status ibtrs -k "'"$release"'" | grep ": installed"'
	as_root rm -rf --one-file-system "$folder"
	as_root sh -c "echo '$1' > '$tree/.installed'"
}

kernel=$("$TOP/scripts/stock-kernel.sh" | tail -n 1)
release=$(cat "$kernel/include/config/kernel.release")
guest=$("$TOP/scripts/guest-tree.sh" | tail -n 1)
base_key=$({
	echo "$(basename "$kernel") ${PACKAGES[*]}"
	find "$guest/etc/systemd/system" -printf '%P %l\n' | LC_ALL=C sort
} | sha256sum | cut -c1-12)

exec 9>"$IBTRS_CACHE/.package-tree.lock"
flock 9
key=$(source_key)
mkdir -p "$STOCK_METADATA"
[ -d "$VENDOR" ] || with_progress "Fetching the crates of the command" 1 make_vendor
[ "$(cat "$tree/.base" 2>/dev/null)" = "$base_key" ] || take_base ||
	with_progress "Making a Debian 13 with what our packages depend on" 12 make_base
remove_left
[ "$(cat "$tree/.installed" 2>/dev/null)" = "$key" ] ||
	with_progress "Building our packages and installing them" 250 install_packages "$key"
echo "$tree"
