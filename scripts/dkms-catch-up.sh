#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# dkms-catch-up.sh MODULE VERSION: makes DKMS build and install the modules for
# each kernel that has headers and no modules yet; for each other kernel without
# modules a line gives the reason.  The package runs it when headers or sources
# of a kernel were installed, and does not fail for a kernel without modules.
# An initramfs that maps the root disk is made again if it is older than the modules.
set -u

module=$1
version=$2
scripts=$(dirname "$0")

say() { printf '%s: %s\n' "$module" "$*"; }
is_installed() { dkms status -m "$module" -v "$version" -k "$1" 2>/dev/null | grep -q ': installed'; }
# All that check-kdir.sh has to say, in one line.
unfit() { "$scripts/check-kdir.sh" --kernel-only "$1" 2>&1 | sed -n 's/^missing: //p' | paste -sd ';' | sed 's/;/; /g'; }

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
	why=$(unfit "$headers")
	if [ -n "$why" ]; then
		say "no modules for kernel $kernel, which does not suit: $why"
	elif is_installed "$kernel"; then
		say "the modules for kernel $kernel are installed"
	elif ! why=$("$scripts/kernel-metadata.sh" "$headers" 2>&1 >/dev/null); then
		say "no modules for kernel $kernel: $(tail -n 1 <<<"${why#error: }")"
	elif dkms install -m "$module" -v "$version" -k "$kernel"; then
		say "the modules for kernel $kernel are installed"
	else
		say "no modules for kernel $kernel: they could not be built, see above"
	fi
}

[ ! -e /etc/dkms/no-autoinstall ] || exit 0
for headers in /lib/modules/*/build; do
	[ -d "$headers/include" ] || continue
	kernel=$(basename "$(dirname "$headers")")
	catch_up "$kernel" "$headers"
	catch_up_initramfs "$kernel"
done
