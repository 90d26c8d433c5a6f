#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# guest-tree.sh: makes, once, the Debian 13 with systemd that guests boot in
# which real programs use our disks; prints its folder as the last line.
# shellcheck source=scripts/env.sh
. "$(dirname "$0")/env.sh"
# shellcheck source=scripts/stock-tools.sh
. "$TOP/scripts/stock-tools.sh"

# The command server and what scenarios use, and the programs on top.
PACKAGES=(bash-static busybox-static python3-minimal procps fio iproute2 rdma-core kmod
	systemd systemd-sysv udev dbus util-linux-extra
	e2fsprogs xfsprogs lvm2 mdadm cryptsetup-bin multipath-tools smartmontools udisks2
	postgresql keyutils)
# What of these packages nobody here runs, more than half of their size: PostgreSQL's
# compiler of queries, which scenarios turn off, and the sources of locales.
export TREE_WITHOUT='/usr/lib/*/libLLVM* /usr/lib/*/libz3.so* /usr/lib/postgresql/*/lib/bitcode/* /usr/share/i18n/*'
# What it would do by itself, with nobody to see it: where processors are
# emulated it would take minutes to boot.  Scenarios start what they are about.
MASKED=(apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer e2scrub_reap.service
	fstrim.timer xfs_scrub_all.timer mdcheck_start.timer mdcheck_continue.timer mdmonitor.service
	systemd-tmpfiles-clean.timer systemd-binfmt.service proc-sys-fs-binfmt_misc.automount
	proc-sys-fs-binfmt_misc.mount ldconfig.service systemd-journal-catalog-update.service
	systemd-hwdb-update.service systemd-update-done.service systemd-sysusers.service
	systemd-firstboot.service systemd-random-seed.service systemd-logind.service getty.target
	systemd-hostnamed.socket systemd-sysext.socket sys-fs-fuse-connections.mount smartmontools.service)
# Enabled by their packages, started by the scenarios that want them.
DISABLED=(multipathd.service multipathd.socket udisks2.service postgresql.service)

key=$(sha256sum "$0" | cut -c1-12)
# Checkouts with other packages in it have theirs beside it.
tree=$IBTRS_CACHE/debian-$STOCK_RELEASE-guest-$key

make_it() {
	make_tree "$tree" "${PACKAGES[@]}"
	local unit
	for unit in "${MASKED[@]}"; do
		as_root ln -sf /dev/null "$tree/etc/systemd/system/$unit"
	done
	for unit in "${DISABLED[@]}"; do
		as_root find "$tree/etc/systemd/system" -path "*.wants/$unit" -delete
	done
	as_root ln -sf /usr/lib/systemd/system/multi-user.target "$tree/etc/systemd/system/default.target"
	as_root mkdir -p "$tree/lib/modules" "$tree/mnt/share"
	as_root sh -c ": > '$tree/etc/fstab' && echo uninitialized > '$tree/etc/machine-id'"
	# The cluster that the package makes: one on our disk is what is tried.
	as_root rm -rf "$tree"/var/lib/postgresql/*/main "$tree"/etc/postgresql/*/main
	as_root sh -c ": > '$tree/.complete'"
}

exec 9>"$IBTRS_CACHE/.guest-tree.lock"
flock 9
[ -e "$tree/.complete" ] ||
	with_progress "Making a Debian 13 with systemd for guests" 12 make_it
echo "$tree"
