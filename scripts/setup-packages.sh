#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# Installs what the build and the tests need on Debian 12 or 13.  Does nothing,
# quickly, where it is all there already.
# shellcheck source=scripts/env.sh
. "$(dirname "$0")/env.sh"
# shellcheck source=scripts/apt-suite.sh
. "$TOP/scripts/apt-suite.sh"

OLDEST_RUSTC=1.85
# From this one on, links between guests come back by themselves (reconnect-ms).
# Before 8.1, an emulated guest could run instructions that its kernel had just
# replaced (static keys), and died of it now and then.
OLDEST_QEMU=9.2

KERNEL_BUILD=(gcc libc6-dev flex bison bc libelf-dev libssl-dev pahole cpio kmod xz-utils rsync make git)
GUESTS=(qemu-system-x86 busybox-static bash-static python3 python3-pytest python3-pytest-xdist python3-pyverbs procps fio iproute2 rdma-core
	ibverbs-providers perftest nvme-cli mdadm lvm2 cryptsetup-bin hdparm fdisk e2fsprogs xfsprogs shellcheck)

[ "$(uname -m)" = x86_64 ] || die "the guests are x86-64 only, and so must this machine be"
command -v apt-get >/dev/null || die "this set-up knows apt of Debian only; the lists of packages in this script say what is needed"

installed() { dpkg-query -W -f '${db:Status-Status}\n' "$1" 2>/dev/null | grep -qx installed; }
at_least() { dpkg --compare-versions "$1" ge "$2"; }
candidate() { apt-cache policy "$1" | sed -n 's/^  Candidate: //p' | grep -v none; }

apt_install() { as_root env DEBIAN_FRONTEND=noninteractive apt-get "$@"; }

install_missing() {
	local missing=() package
	for package in "$@"; do
		installed "$package" || missing+=("$package")
	done
	[ "${#missing[@]}" -gt 0 ] || return 0
	refresh_lists
	say "Missing: ${missing[*]}"
	# The title names the log: a bare machine misses more than fits there.
	with_progress "Installing ${#missing[@]} packages" $((${#missing[@]} * 12)) \
		apt_install -y --no-install-recommends install "${missing[@]}"
}

refresh_lists() {
	[ -z "${lists_fresh:-}" ] || return 0
	with_progress "Reading the package lists" 20 apt_install update
	lists_fresh=1
}

# The rustc of the release's web browser is the newest one; without it the
# plain one, if it is new enough.
install_rust() {
	local version
	if installed rustc-web || ! installed rustc; then
		installed rustc-web || refresh_lists
		if installed rustc-web || candidate rustc-web >/dev/null; then
			install_missing rustc-web rust-web-src rustfmt-web rust-web-clippy
			command -v cargo >/dev/null || install_missing cargo-web
			return
		fi
	fi
	version=$(candidate rustc || true)
	at_least "${version:-0}" "$OLDEST_RUSTC" ||
		die "the kernel needs rustc $OLDEST_RUSTC or newer; this machine's packages have ${version:-none}"
	install_missing rustc rust-src rustfmt rust-clippy
	command -v cargo >/dev/null || install_missing cargo
}

install_qemu_backport() {
	local suite
	suite=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)-backports
	open_suite "$suite" with-system
	apt_install "${APT_SUITE[@]}" -y --no-install-recommends install -t "$suite" qemu-system-x86
}

qemu_version() { dpkg-query -W -f '${Version}' qemu-system-x86 | sed 's/^[0-9]*://'; }

install_bindgen() {
	cargo install --locked bindgen-cli --version "$BINDGEN_VERSION" --root "$BINDGEN_ROOT"
}

install_missing "${KERNEL_BUILD[@]}" "${GUESTS[@]}"
install_rust
LLVM_MAJOR=$(llvm_of_rustc)
install_missing "clang-$LLVM_MAJOR" "lld-$LLVM_MAJOR" "llvm-$LLVM_MAJOR" "libclang-$LLVM_MAJOR-dev"
export LIBCLANG_PATH=/usr/lib/llvm-$LLVM_MAJOR/lib
if ! at_least "$(qemu_version)" "$OLDEST_QEMU"; then
	with_progress "Installing a newer QEMU than $(qemu_version)" 40 install_qemu_backport
fi
[ -x "$BINDGEN_ROOT/bin/bindgen" ] ||
	with_progress "Building bindgen $BINDGEN_VERSION" 130 install_bindgen
# The guests' modules are mounted there.
[ -d /lib/modules ] || as_root mkdir -p /lib/modules
