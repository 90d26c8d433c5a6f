#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# setup-packages.sh [stock-tools|stock|bench|versions]: installs the packages for the build and
# the tests on Debian 12 or 13; or those for stock-tools.sh, or only those for a demonstration on
# Debian's own kernel, or those for reports of the bench, or what builds the kernel with versions
# of symbols beside the rest.  Ends quickly if all are installed.
# shellcheck source=scripts/env.sh
. "$(dirname "$0")/env.sh"
# shellcheck source=scripts/apt-suite.sh
. "$TOP/scripts/apt-suite.sh"

OLDEST_RUSTC=1.85
# From this one on, links between guests come back by themselves (reconnect-ms).
# Before 8.1, an emulated guest could run instructions that its kernel had just
# replaced (static keys), and died of it now and then.
OLDEST_QEMU=9.2

KERNEL_BUILD=(gcc libc6-dev flex bison bc libelf-dev libssl-dev pahole perl cpio kmod xz-utils rsync make git)
DEMO=(busybox-static bash-static python3 procps fio iproute2 rdma-core ibverbs-providers kmod xz-utils gcc libc6-dev make keyutils)
GUESTS=(python3-pytest python3-pytest-xdist python3-pyverbs perftest nvme-cli mdadm lvm2 cryptsetup-bin hdparm fdisk
	e2fsprogs xfsprogs wireguard-tools wpasupplicant shellcheck mandoc liburing-dev librdmacm-dev
	libibverbs-dev libzmq3-dev libnng-dev python3-sphinx python3-myst-parser openssh-server openssh-client)
BENCH=(python3-matplotlib)
VERSIONS=(libdw-dev)
STOCK_TOOLS=(mmdebstrap debian-archive-keyring kmod xz-utils)

[ "$(uname -m)" = x86_64 ] || die "the guests are x86-64 only, and so must this machine be"
command -v apt-get >/dev/null || die "this set-up knows apt of Debian only; the lists of packages in this script say what is needed"

installed() { dpkg-query -W -f '${db:Status-Status}\n' "$1" 2>/dev/null | grep -qx installed; }
at_least() { dpkg --compare-versions "$1" ge "$2"; }
candidate() { apt-cache policy "$1" | sed -n 's/^  Candidate: //p' | grep -v none; }

# Another part of set-up may be installing at the same time.
apt_install() { as_root env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600 "$@"; }

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
	local folder=/var/lib/apt/lists
	[ -z "${lists_fresh:-}" ] || return 0
	# Another part of set-up may have read them a moment ago.
	[ -z "$(find $folder -maxdepth 0 -mmin -20)" ] || ! compgen -G "$folder/*_Packages*" >/dev/null || return 0
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

# The release's own, or a newer one, but not one after the other: it is large.
install_qemu() {
	local version suite
	if installed qemu-system-x86; then
		version=$(dpkg-query -W -f '${Version}' qemu-system-x86)
	else
		refresh_lists
		version=$(candidate qemu-system-x86 || true)
	fi
	if at_least "${version#*:}" "$OLDEST_QEMU"; then
		install_missing qemu-system-x86
	else
		suite=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)-backports
		with_progress "Installing a newer QEMU than ${version:-none}" 40 install_qemu_backport "$suite"
	fi
}

install_qemu_backport() {
	open_suite "$1" with-system
	apt_install "${APT_SUITE[@]}" -y --no-install-recommends install -t "$1" qemu-system-x86
}

install_bindgen() {
	cargo install --locked bindgen-cli --version "$BINDGEN_VERSION" --root "$BINDGEN_ROOT"
}

# Of Prometheus only the program that checks alert rules: the package would start a server, and has
# libraries for its web pages.
get_promtool() {
	local folder
	folder=$(mktemp -d "$IBTRS_CACHE/promtool.XXXXXX")
	(
		cd "$folder"
		apt-get -o APT::Sandbox::User= download prometheus
		dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x ./usr/bin/promtool
	)
	mv "$folder/usr/bin/promtool" "$IBTRS_CACHE/promtool"
	rm -r "$folder"
}

# The guests' modules are mounted there.
[ -d /lib/modules ] || as_root mkdir -p /lib/modules

case ${1:-} in
bench)
	install_missing "${BENCH[@]}"
	exit 0
	;;
versions)
	install_missing "${VERSIONS[@]}"
	exit 0
	;;
stock-tools)
	install_missing "${STOCK_TOOLS[@]}"
	exit 0
	;;
stock)
	install_missing "${DEMO[@]}"
	install_qemu
	exit 0
	;;
tool)
	install_rust
	exit 0
	;;
esac
install_missing "${KERNEL_BUILD[@]}" "${DEMO[@]}" "${GUESTS[@]}" "${BENCH[@]}"
install_qemu
install_rust
LLVM_MAJOR=$(llvm_of_rustc)
install_missing "clang-$LLVM_MAJOR" "lld-$LLVM_MAJOR" "llvm-$LLVM_MAJOR" "libclang-$LLVM_MAJOR-dev"
export LIBCLANG_PATH=/usr/lib/llvm-$LLVM_MAJOR/lib
if [ ! -x "$IBTRS_CACHE/promtool" ]; then
	refresh_lists
	with_progress "Fetching promtool" 5 get_promtool
fi
[ -x "$BINDGEN_ROOT/bin/bindgen" ] ||
	with_progress "Building bindgen $BINDGEN_VERSION" 130 install_bindgen
