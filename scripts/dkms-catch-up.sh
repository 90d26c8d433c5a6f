#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# dkms-catch-up.sh MODULE VERSION: makes DKMS build and install the modules for
# each kernel that has headers and no modules yet; for each other installed kernel
# without modules a line gives the reason.  The package runs it when headers or sources
# of a kernel were installed, and does not fail for a kernel without modules.
# An initramfs that maps the root disk is made again if it is older than the modules.
set -u

module=$1
version=$2
scripts=$(dirname "$0")

say() { printf '%s: %s\n' "$module" "$*"; }
is_installed() { dkms status -m "$module" -v "$version" -k "$1" 2>/dev/null | grep -q ': installed'; }
# What check-kdir.sh has found, in one line.
lacks() { sed -n 's/^missing: //p' | paste -sd '|' | sed 's/|/; /g'; }

# Why there are no modules, of all that was said.
reason() {
	local said lacks
	said=$(cat)
	lacks=$(lacks <<<"$said")
	if [ -n "$lacks" ]; then echo "these are missing: $lacks"; else tail -n 1 <<<"$said" | sed 's/^error: //'; fi
}

# A kernel may be configured before its headers, so that its initramfs is made before there are modules.
catch_up_initramfs() {
	local kernel=$1 initramfs=/boot/initrd.img-$1 file
	[ -e /etc/ibtrs/root/client.toml ] && [ -e "$initramfs" ] || return 0
	for file in "/lib/modules/$kernel/updates/dkms/ibnbd_client.ko"*; do
		[ ! "$file" -nt "$initramfs" ] || update-initramfs -u -k "$kernel" ||
			say "the initramfs of kernel $kernel cannot map the root disk: see above, then run update-initramfs -u -k $kernel"
	done
}

catch_up() {
	local kernel=$1 headers=$2 why
	why=$("$scripts/check-kdir.sh" --kernel-only "$headers" 2>&1 | lacks)
	if [ -n "$why" ]; then
		say "no modules for kernel $kernel, which does not suit: $why"
	elif is_installed "$kernel"; then
		say "the modules for kernel $kernel are installed"
	elif ! why=$(cd "$scripts/.." && scripts/dkms-pre-build.sh --no-build "$headers" 2>&1); then
		say "no modules for kernel $kernel: $(reason <<<"$why")"
	elif dkms install -m "$module" -v "$version" -k "$kernel"; then
		say "the modules for kernel $kernel are installed"
	else
		say "no modules for kernel $kernel: they could not be built, see above"
	fi
}

# DKMS keeps the modules of a kernel whose headers go.
without_headers() {
	[ ! -e "/lib/modules/$1/modules.builtin" ] || is_installed "$1" || case $1 in
	[0-6].* | 7.[0-2].*) ;;
	*) say "no modules for kernel $1: its headers are not installed: apt install linux-headers-$1" ;;
	esac
}

[ ! -e /etc/dkms/no-autoinstall ] || exit 0
for folder in /lib/modules/*/; do
	kernel=$(basename "$folder")
	if [ -d "${folder}build/include" ]; then
		catch_up "$kernel" "${folder}build"
		catch_up_initramfs "$kernel"
	else
		without_headers "$kernel"
	fi
done
