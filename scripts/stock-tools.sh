# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# Sourced: Debian's own kernel for the tests ("stock"), and the tools that
# Debian built it with.  A Debian 13 machine has these tools in its packages;
# elsewhere they live in a Debian 13 tree below $IBTRS_CACHE, made once.  The
# tree belongs to root.

# shellcheck source=scripts/apt-suite.sh
. "$TOP/scripts/apt-suite.sh"

STOCK_RELEASE=trixie
STOCK_SUITE=$STOCK_RELEASE-backports
STOCK_TREE=$IBTRS_CACHE/debian-$STOCK_RELEASE
# Of packages in trees: rust-src has most of its files where no kernel is built from, and
# two thirds of Clang's are libraries to link with.
NOT_UNPACKED=('/usr/src/rustc-*/src/*' '/usr/src/rustc-*/compiler/*' '/usr/lib/llvm-*/lib/*.a')
# For dpkg * stands for slashes as well: the library's folders are named src, too.
UNPACKED=('/usr/src/rustc-*/library/*')
STOCK_KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg
# Where kernel-metadata.sh keeps what it makes.
STOCK_METADATA=$IBTRS_CACHE/metadata

# What building modules for the kernel release $1 takes.
stock_packages() {
	local version=${1%%[-+]*}
	printf '%s\n' rustc rust-src bindgen gcc-14 make flex bison bc libelf-dev libssl-dev libclang-dev pahole \
		python3 cpio kmod xz-utils libc6-dev "linux-headers-$1" "linux-source-${version%.*}"
}

# Whether this machine's packages can be the tools.  A machine that has the
# newer compiler for the test kernels cannot have the kernel's beside it.
stock_tools_are_ours() {
	grep -qx "VERSION_CODENAME=$STOCK_RELEASE" /etc/os-release &&
		! dpkg-query -W -f '${db:Status-Status}' rustc-web 2>/dev/null | grep -qx installed
}

# What is mounted in a tree would be removed with it.
nothing_mounted_below() {
	! grep -qF " $1/" /proc/self/mountinfo || die "something is still mounted below $1: unmount it first"
}

# make_tree FOLDER PACKAGE...: a Debian 13 with these packages, less the files that
# $TREE_WITHOUT has patterns for.
make_tree() {
	local folder=$1 mirror signed="[signed-by=$STOCK_KEYRING]" packages pattern patterns without=()
	shift
	mirror=$(debian_mirror)
	read -ra patterns <<<"${TREE_WITHOUT:-}"
	for pattern in "${patterns[@]}"; do
		without+=(--dpkgopt="path-exclude=$pattern")
	done
	packages=$(printf '%s\n' "$@" | paste -sd,)
	nothing_mounted_below "$folder"
	as_root rm -rf --one-file-system "$folder.new"
	# Nothing is lost in a crash that could not be made again.
	as_root mmdebstrap --mode=root --variant=apt --include="$packages" \
		"${NOT_UNPACKED[@]/#/--dpkgopt=path-exclude=}" "${UNPACKED[@]/#/--dpkgopt=path-include=}" \
		--aptopt='APT::Install-Recommends "false"' --aptopt='APT::Sandbox::User "root"' \
		--dpkgopt=force-unsafe-io --dpkgopt='path-exclude=/usr/share/doc/*' \
		--dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' "${without[@]}" \
		"$STOCK_RELEASE" "$folder.new" "deb $signed $mirror $STOCK_RELEASE main" \
		"deb $signed $mirror $STOCK_SUITE main"
	printf '%s\n' "$@" | as_root tee "$folder.new/.packages" >/dev/null
	# One with other packages than before.
	as_root rm -rf --one-file-system "$folder"
	as_root mv "$folder.new" "$folder"
}

# Whether the folder has a tree that was made of these packages.
is_tree() {
	local folder=$1
	shift
	[ "$(cat "$folder/.packages" 2>/dev/null)" = "$(printf '%s\n' "$@")" ]
}

install_stock_tools() {
	open_suite "$STOCK_SUITE" with-system
	as_root env DEBIAN_FRONTEND=noninteractive \
		apt-get "${APT_SUITE[@]}" -o DPkg::Lock::Timeout=600 -y --no-install-recommends install "$@"
}

all_installed() {
	local found
	found=$(dpkg-query -W -f '${db:Status-Status}\n' "$@" 2>/dev/null | grep -cx installed || true)
	[ "$found" = $# ]
}

# make_stock_tools RELEASE: sees that the tools for that kernel are there.
make_stock_tools() {
	local packages
	mapfile -t packages < <(stock_packages "$1")
	exec 8>"$IBTRS_CACHE/.stock-tools.lock"
	flock 8
	if stock_tools_are_ours; then
		all_installed "${packages[@]}" ||
			with_progress "Installing the tools of Debian's kernel $1" 200 install_stock_tools "${packages[@]}"
	else
		is_tree "$STOCK_TREE" "${packages[@]}" ||
			with_progress "Making a Debian 13 tree with the tools of its kernel $1" 12 make_tree "$STOCK_TREE" "${packages[@]}"
	fi
	exec 8>&-
}

# with_own_mounts COMMAND...: as root; what it mounts is not to show elsewhere.  In a
# chroot there is nothing to say that of.
with_own_mounts() {
	local propagation=private
	as_root unshare --mount --propagation private true 2>/dev/null || propagation=unchanged
	as_root unshare --mount --propagation "$propagation" "$@"
}

# with_stock_tools COMMAND...: runs it, as this user, where the tools are.
# Checkout and cache are in the same place there.
with_stock_tools() {
	local variables=(PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 HOME=/tmp "IBTRS_METADATA=$STOCK_METADATA" "JOBS=$JOBS")
	if stock_tools_are_ours; then
		env -i "${variables[@]}" "$@"
		return
	fi
	# shellcheck disable=SC2016 # for the shell inside
	with_own_mounts sh -euc '
		tree=$1 user=$2 top=$3 cache=$4
		shift 4
		mkdir -p "$tree$top" "$tree$cache"
		mount --bind "$top" "$tree$top"
		mount --bind "$cache" "$tree$cache"
		mount --bind /dev "$tree/dev"
		mount -t proc proc "$tree/proc"
		exec chroot --userspec="$user" --groups= "$tree" env -i "$@"' \
		sh "$STOCK_TREE" "$(id -u):$(id -g)" "$TOP" "$IBTRS_CACHE" "${variables[@]}" "$@" </dev/null
}

# The folder to build our modules against (KDIR), for the kernel release $1.
stock_kdir() {
	with_stock_tools "$TOP/scripts/kernel-metadata.sh" "/lib/modules/$1/build"
}
