#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# test-deb.sh: tests the Debian packages in a fresh Debian 13 with backports, made
# by mmdebstrap: builds them, checks them with lintian, installs them; has DKMS build
# the modules for Debian's own kernel and for a second one, skip kernels that are too old
# and one whose source or bindgen is missing, refuse one whose symbols differ from the
# metadata, replace modules that were installed from source, and build them again after
# an upgrade that was taken back; purges them.
# No kernel is booted.  Needs root, mmdebstrap and a package mirror.
# shellcheck source=scripts/env.sh
. "$(dirname "$0")/env.sh"
# shellcheck source=scripts/apt-suite.sh
. "$TOP/scripts/apt-suite.sh"

MODULES_OF_OURS=(ibtrs_core ibtrs_client ibtrs_server ibnbd_client ibnbd_server ibmsg)
work=$IBTRS_CACHE/test-deb
base=$work/debian13.tar
logs=$work/logs
version=$(sed -n '1s/^ibtrs (\(.*\)).*/\1/p' "$TOP/tools/debian/changelog")
passed=0

# inside ROOT COMMAND: in that tree, with its own mounts.
inside() {
	# shellcheck disable=SC2016 # for the inner shell
	unshare --mount --pid --fork bash -c '
		mount -t proc proc "$1/proc" && mount --rbind /dev "$1/dev" || exit
		exec chroot "$1" env -i HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
			PATH=/usr/sbin:/usr/bin:/sbin:/bin bash -c "$2"' - "$work/$1" "$2"
}

# step NAME COMMAND...: its output goes to a log, its time to the screen.
step() {
	local name=$1 started log rc=0
	shift
	log=$logs/$(tr -cs '[:alnum:]' - <<<"$name" | sed 's/-$//').log
	started=$(date +%s)
	# In the background, or bash would go on after a command that fails in it.
	"$@" >"$log" 2>&1 &
	wait $! || rc=$?
	if [ "$rc" != 0 ]; then
		tail -n 40 "$log" >&2
		die "$name: status $rc, see $log"
	fi
	passed=$((passed + 1))
	say "$name: $(($(date +%s) - started)) s"
}

make_base() {
	local mirror key='[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]'
	[ ! -e "$base" ] || return 0
	mirror=$(debian_mirror)
	# It makes an archive because of the name.
	mmdebstrap --variant=minbase --include=ca-certificates --dpkgopt=force-unsafe-io trixie "$work/new.tar" \
		"deb $key $mirror trixie main" "deb $key $mirror trixie-backports main"
	mv "$work/new.tar" "$base"
}

fresh() {
	rm -rf "${work:?}/$1"
	mkdir -p "$work/$1"
	tar -C "$work/$1" -xf "$base"
	cp -L /etc/resolv.conf "$work/$1/etc/"
	inside "$1" 'apt-get update -q'
}

build_packages() {
	fresh builder
	inside builder 'apt-get install -qy --no-install-recommends make debhelper dh-dkms cargo python3 lintian'
	mkdir -p "$work/builder/root/ibtrs"
	git -C "$TOP" ls-files -z --cached --others --exclude-standard |
		tar -C "$TOP" --null --no-recursion --files-from=- -c | tar -C "$work/builder/root/ibtrs" -x
	"$TOP/scripts/vendor.py" "$work/builder/root/ibtrs/vendor"
	inside builder 'make -C /root/ibtrs deb'
}

check_packages() { inside builder 'lintian --display-info --info --fail-on error,warning,info /root/ibtrs/build/*.deb'; }

# The kernel of the release itself, too old for the modules.
install_old_kernel() {
	fresh machine
	inside machine 'apt-get install -qy --no-install-recommends linux-headers-amd64'
}

install_packages() {
	cp "$work"/builder/root/ibtrs/build/*.deb "$work/machine/root/"
	inside machine 'apt-get install -qy /root/*.deb'
}

install_second_kernel() {
	local release
	release=$(kernel_like '7\.[^-]*-amd64')
	inside machine "apt-get install -qy linux-headers-${release%-amd64}-cloud-amd64"
}

# The line that the documentation has before that of the packages.
packages_are_there() {
	local line
	line=$(sed -n 's/^    \(apt install -t trixie-backports .*\)/\1/p' "$TOP/Documentation/installation.md")
	[ "$(wc -l <<<"$line")" = 1 ]
	[ "$line" = "$(sed -n 's/^    \(apt install -t trixie-backports .*\)/\1/p' "$TOP/README.md")" ]
	inside machine "${line/apt/apt-get} --simulate" >"$work/simulated"
	cat "$work/simulated"
	grep -E '^Inst linux-image-7\.[^ ]*-amd64 ' "$work/simulated"
	grep -E '^Inst linux-headers-7\.[^ ]*-amd64 ' "$work/simulated"
	grep -E '^Inst linux-source-7\.[0-9]+ ' "$work/simulated"
}

# has_modules RELEASE: all six, for this very kernel, signed by DKMS's key, and
# without debugging information.
has_modules() {
	local release=$1 module file key
	# The serial number of a certificate, in pairs with colons as modinfo writes it.
	key=$(inside machine 'openssl x509 -inform DER -in /var/lib/dkms/mok.pub -noout -serial' |
		sed 's/^serial=//; s/../&:/g; s/:$//')
	for module in "${MODULES_OF_OURS[@]}"; do
		file=$(cd "$work/machine" && ls "lib/modules/$release/updates/dkms/$module".ko*)
		inside machine "modinfo -F vermagic /$file" | grep -q "^$release "
		[ "$(inside machine "modinfo -F sig_key /$file")" = "$key" ]
		[ "$(stat -c %s "$work/machine/$file")" -lt 1500000 ]
	done
	inside machine "dkms status ibtrs -k $release" | grep ': installed'
}

# The release of the one kernel whose name fits.
kernel_like() { (cd "$work/machine/lib/modules" && printf '%s\n' * | grep -xE "$1"); }

says_why_not() {
	grep -E "^ibtrs: no modules for kernel 6\.12[^ ]*, which does not suit: .*CONFIG_RUST" "$logs"/the-packages-install.log
	[ ! -e "$work/machine/lib/modules/$(kernel_like '6\..*')/updates" ]
}

# Another one that is too old comes when the packages are there.
install_another_old_kernel() { inside machine 'apt-get install -qy --no-install-recommends linux-headers-rt-amd64'; }
says_why_not_again() {
	local release
	release=$(kernel_like '6\..*-rt-amd64')
	grep -F "ibtrs: no modules for kernel $release, which does not suit: " "$logs"/another-old-kernel-is-installed.log
	[ ! -e "$work/machine/lib/modules/$release/updates" ]
}

# What `make install` has installed gives way to the package's.
modules_from_source() {
	local release updates
	release=$(kernel_like '7\.[^-]*-amd64')
	updates=/lib/modules/$release/updates
	inside machine "cp $updates/dkms/*.ko* $updates/ && dkms uninstall ibtrs/$version -k $release &&
		ls $updates/*.ko* && /usr/src/ibtrs-$version/scripts/dkms-catch-up.sh ibtrs $version"
	has_modules "$release"
	[ -z "$(find "$work/machine$updates" -maxdepth 1 -name '*.ko*')" ]
	inside machine "dkms uninstall ibtrs/$version -k $release"
	[ "$(find "$work/machine$updates" -maxdepth 1 -name '*.ko*' | wc -l)" = 6 ]
	# As the documentation says.
	inside machine "rm $updates/{ibmsg,ib{trs,nbd}_*}.ko* && /usr/src/ibtrs-$version/scripts/dkms-catch-up.sh ibtrs $version"
	has_modules "$release"
}

# What dpkg calls when it takes an upgrade back: the old version has removed its modules.
take_upgrade_back() {
	local release
	release=$(kernel_like '7\.[^-]*-amd64')
	inside machine '/var/lib/dpkg/info/ibtrs-dkms.prerm upgrade 9.9'
	[ ! -e "$work/machine/lib/modules/$release/updates/dkms" ]
	inside machine '/var/lib/dpkg/info/ibtrs-dkms.postinst abort-upgrade 9.9'
	has_modules "$release"
}

# A compiler that is not the kernel's: the kernel is skipped and named, and gets its modules later.
lose_compiler() {
	local release
	release=$(kernel_like '7\.[^-]*-amd64')
	inside machine "dkms unbuild ibtrs/$version -k $release"
	mv "$work/machine/usr/bin/bindgen" "$work/bindgen"
	inside machine 'dpkg-reconfigure ibtrs-dkms'
	[ ! -e "$work/machine/lib/modules/$release/updates/dkms" ]
}
compiler_is_named() {
	grep -F "ibtrs: no modules for kernel $(kernel_like '7\.[^-]*-amd64'): these are missing: bindgen " \
		"$logs"/a-kernel-without-bindgen-is-skipped.log
	mv "$work/bindgen" "$work/machine/usr/bin/bindgen"
	inside machine 'dpkg-reconfigure ibtrs-dkms'
}

# apt may unpack a kernel's headers before its source: without the source the
# modules are skipped, and built when it has come.
lose_source() {
	local release
	release=$(kernel_like '7\.[^-]*-amd64')
	inside machine "dkms unbuild ibtrs/$version -k $release"
	# The result is kept for later, to save the time.
	mv "$work/machine/var/lib/ibtrs/kernel/$release" "$work/machine/root/made"
	inside machine "dpkg --purge --force-depends linux-source-$(cut -d. -f1,2 <<<"$release")"
	inside machine "/usr/lib/dkms/dkms_autoinstaller start $release"
	[ ! -e "$work/machine/lib/modules/$release/updates/dkms" ]
}
find_source_again() {
	mv "$work/machine/root/made" "$work/machine/var/lib/ibtrs/kernel/$(kernel_like '7\.[^-]*-amd64')"
	inside machine 'apt-get install -qy --fix-broken'
}

# A kernel of other symbols than the metadata speaks of: nothing is built for it,
# and the installation does not fail.
change_a_symbol() {
	local release headers symbol
	release=$(kernel_like '7\.[^-]*-amd64')
	headers=$work/machine/usr/src/linux-headers-$release
	symbol=$(head -n 1 "$work/machine/var/lib/ibtrs/kernel/$release/symbols")
	inside machine "dkms unbuild ibtrs/$version -k $release"
	cp "$headers/Module.symvers" "$work/symvers"
	sed -i "s/\t$symbol\t/\t${symbol}_\t/" "$headers/Module.symvers"
	[ "$(diff "$headers/Module.symvers" "$work/symvers" | grep -c '^<')" = 1 ]
	# The steps of dpkg when a package brings files there.
	inside machine 'dpkg-trigger --by-package=dkms /usr/src && dpkg --triggers-only --pending'
	[ ! -e "$work/machine/lib/modules/$release/updates/dkms" ]
}
is_refused() {
	local release not_fit
	release=$(kernel_like '7\.[^-]*-amd64')
	not_fit="the Rust metadata does not fit kernel ${release//+/\\+}: 1 of [0-9]+ symbols are not the kernel's"
	grep -E "^ibtrs: no modules for kernel ${release//+/\\+}: $not_fit" "$logs"/a-symbol-is-not-the-kernel-s.log
	# Nor does DKMS build by hand, or begin to.
	if inside machine "dkms build ibtrs/$version -k $release" >"$work/build.log" 2>&1; then return 1; fi
	cat "$work/machine/var/lib/dkms/ibtrs/$version/build/make.log" >>"$work/build.log" || true
	cat "$work/build.log"
	grep -E "^error: $not_fit" "$work/build.log"
	[ -z "$(find "$work/machine/var/lib/dkms/ibtrs/$version" -name '*.o')" ]
}
change_it_back() {
	local release
	release=$(kernel_like '7\.[^-]*-amd64')
	mv "$work/symvers" "$work/machine/usr/src/linux-headers-$release/Module.symvers"
	[ "$(inside machine "/usr/src/ibtrs-$version/scripts/kernel-metadata.sh --find /lib/modules/$release/build")" = \
		"/var/lib/ibtrs/kernel/$release/build" ]
}

purge() { inside machine 'apt-get purge -qy ibtrs-dkms ibtrs-tools libibmsg-dev'; }

nothing_is_left() {
	local left
	rm -f "$work"/machine/root/*.deb
	left=$(find "$work/machine" -xdev \( -name '*ibtrs*' -o -name '*ibnbd*' -o -name '*ibmsg*' \) -not -name 'libnbd*' \
		-not -path '*/var/cache/apt/*' -not -path '*/var/log/*')
	[ -z "$left" ] || die "left behind: $left"
}

[ "$(id -u)" = 0 ] || die "this makes trees of another Debian, which root has to do"
command -v mmdebstrap >/dev/null || die "mmdebstrap is needed: apt install mmdebstrap"
mkdir -p "$logs"
step "a fresh Debian 13" make_base
step "the packages are built" build_packages
step "lintian has nothing to say" check_packages
step "an old kernel is installed" install_old_kernel
step "the kernel's packages are there" packages_are_there
step "the packages install" install_packages
step "the modules are there" has_modules "$(kernel_like '7\.[^-]*-amd64')"
step "the old kernel is skipped and named" says_why_not
step "a second kernel is installed" install_second_kernel
step "its modules are there" has_modules "$(kernel_like '7\..*-cloud-amd64')"
step "another old kernel is installed" install_another_old_kernel
step "it is skipped and named" says_why_not_again
step "modules from source give way" modules_from_source
step "an upgrade that is taken back keeps the modules" take_upgrade_back
step "a kernel without bindgen is skipped" lose_compiler
step "bindgen is named, and comes" compiler_is_named
step "its kernel has the modules" has_modules "$(kernel_like '7\.[^-]*-amd64')"
step "a kernel without its source is skipped" lose_source
step "the source comes" find_source_again
step "the modules of its kernel are there" has_modules "$(kernel_like '7\.[^-]*-amd64')"
step "a symbol is not the kernel's" change_a_symbol
step "its metadata is refused" is_refused
step "the symbol is the kernel's again" change_it_back
step "the packages are purged" purge
step "nothing is left" nothing_is_left
rm -rf "$work/builder" "$work/machine"
say "test-deb: $passed passed"
