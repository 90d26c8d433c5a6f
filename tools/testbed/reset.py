# SPDX-License-Identifier: GPL-2.0
"""Brings a guest back to what it was before a scenario, for the next one."""

from .channel import CommandFailed
from .guest import Guest

# Clients first: a server's export cannot go while a client uses it.
SCRIPT = r"""
set -u
for mount in $(awk '$2 ~ "^/mnt/" && $2 != "/mnt/share" { print $2 }' /proc/mounts); do
	umount "$mount" || exit 1
done
for unmap in /sys/block/ibnbd*/ibnbd/unmap_device /sys/block/rnbd*/rnbd/unmap_device; do
	[ ! -e "$unmap" ] || echo force >"$unmap" || exit 1
done
for module in ibnbd_client rnbd_client ibnbd_server rnbd_server \
	ibtrs_client rtrs_client ibtrs_server rtrs_server ibtrs_core rtrs_core; do
	[ ! -e "/sys/module/$module" ] || rmmod "$module" || exit 1
done
for disk in /sys/kernel/config/nullb/*/; do
	[ ! -e "$disk/power" ] || rmdir "$disk" || exit 1
done
[ ! -e /sys/module/null_blk ] || rmmod null_blk
"""


class CannotReset(AssertionError):
    """What a scenario left behind cannot be removed."""


def reset(guest: Guest) -> None:
    """Kills what still runs, unmounts, unmaps and unloads."""
    guest.channel.kill_all()
    try:
        guest.run(SCRIPT, timeout=180)
    except CommandFailed as error:
        raise CannotReset(f"{guest.name} could not be cleaned up after the scenario: {error}") from error
