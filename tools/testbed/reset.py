# SPDX-License-Identifier: GPL-2.0
"""Restores a guest's state after a scenario, for the next one."""

from . import exports
from .channel import CommandFailed
from .guest import Guest

# Clients first: a server's export cannot go while a client uses it.  Few
# programs are started, and these are small: in a guest that checks itself a
# start takes its time.  null_blk stays, as it is not what is tested.
SCRIPT = r"""
set -u
# Disks made of others.  What somebody still uses stays, unless --force is given.
unstack() {
	for array in /sys/block/md*/md/array_state; do
		[ ! -e "$array" ] || echo clear 2>/dev/null >"$array" || [ -z "$*" ] || exit 1
	done
	for disk in /sys/block/dm-*; do
		[ ! -e "$disk" ] || { dmsetup remove_all "$@" &>/dev/null || [ -z "$*" ] || exit 1; break; }
	done
	for disk in /sys/block/loop*/loop/backing_file; do
		[ ! -e "$disk" ] || { losetup -D || [ -z "$*" ] || exit 1; break; }
	done
}
while read -r _ mount _; do
	case $mount in
	/mnt/share) ;;
	/mnt/*) busybox umount "$mount" || exit 1 ;;
	esac
done </proc/mounts
unstack
for unmap in /sys/block/ibnbd*/ibnbd/unmap_device /sys/block/rnbd*/rnbd/unmap_device; do
	[ ! -e "$unmap" ] || echo force >"$unmap" || exit 1
done
# The kernel's own client complains when it is unloaded before its sessions are closed.
for _ in {1..300}; do
	sessions=(/sys/class/rtrs-client/*/paths)
	[ -e "${sessions[0]}" ] || break
	sleep 0.1
done
@clear_exports@
loaded=()
for module in ibtrs_sample_disk ibtrs_sample_client ibtrs_sample_calls ibnbd_client rnbd_client ibnbd_server rnbd_server \
	ibtrs_client rtrs_client ibtrs_server rtrs_server ibmsg ibtrs_core rtrs_core; do
	[ ! -e "/sys/module/$module" ] || loaded+=("$module")
done
[ -z "${loaded[*]}" ] || busybox rmmod "${loaded[@]}" || exit 1
unstack --force
disks=()
for disk in /sys/kernel/config/nullb/*/power; do
	[ ! -e "$disk" ] || disks+=("${disk%/power}")
done
[ -z "${disks[*]}" ] || busybox rmdir "${disks[@]}"
# A program that wrote to a missing disk left a file, which could be taken for the next disk.
for disk in /dev/ibnbd* /dev/rnbd*; do
	[ ! -f "$disk" ] || busybox rm "$disk"
done
# The configuration of the command.
busybox rm -rf /tmp/ibtrs
# The next scenario does not take a line of this one for its own.
busybox dmesg -c >/dev/null
""".replace("@clear_exports@", exports.CLEAR)


class CannotReset(AssertionError):
    """Something that a scenario left behind cannot be removed."""


def reset(guest: Guest) -> None:
    """Kills what still runs, plugs in, unmounts, unmaps and unloads."""
    guest.plug_all()
    guest.channel.kill_all()
    try:
        guest.run(SCRIPT, timeout=180)
    except CommandFailed as error:
        raise CannotReset(f"{guest.name} could not be cleaned up after the scenario: {error}") from error
