# SPDX-License-Identifier: GPL-2.0
"""The permanent name of a disk, and the names that udev derives from it."""

import re

import pytest

from testbed import blockdev, uevents
from testbed.channel import Job
from testbed.lab import wait_for
from testbed.paths import TOP

pytestmark = pytest.mark.fast

IMAGE = "/tmp/disk.img"
PATHS = "/sys/class/ibtrs-client/demo/paths"
WWID = "/sys/block/ibnbd0/ibnbd/wwid"
# The UUID of a file system, and of its partition.
COPIED = "6b9c2f0e-5c1d-4a7e-9d37-20c8f1a4be55"


def wwid(pair, stack, device: str, session: str = "demo") -> str:
    """Of a device of the server, as the client shows it."""
    pair.client.run(stack.map_device(device, session=session))
    name = pair.client.run(f"cat {WWID}").strip()
    pair.client.run(stack.unmap())
    return name


def identity(name: str, begin: str) -> str:
    """The end of the name of a disk whose identity is known."""
    assert re.fullmatch(begin + "-[0-9a-f]{16}", name), name
    return name[-16:]


def test_disks_are_known_by_what_they_are(pair, stack):
    server, client = pair
    blockdev.load(pair, stack)
    server.run("modprobe loop && modprobe dm_mod; for n in a b; do truncate -s 32M /tmp/$n; done; "
               "losetup /dev/loop0 /tmp/a && losetup /dev/loop1 /tmp/b")
    first = identity(wwid(pair, stack, "/dev/loop0"), "ibnbd-demo-dev-loop0")
    second = identity(wwid(pair, stack, "/dev/loop1"), "ibnbd-demo-dev-loop1")
    assert first != second
    # Another number, or another session, and it is the same disk.
    server.run("losetup -d /dev/loop0 && losetup -d /dev/loop1 && losetup /dev/loop1 /tmp/a && "
               "losetup /dev/loop0 /tmp/b")
    assert identity(wwid(pair, stack, "/dev/loop1"), "ibnbd-demo-dev-loop1") == first
    assert identity(wwid(pair, stack, "/dev/loop0", session="other"), "ibnbd-other-dev-loop0") == second

    server.run("dmsetup create --noudevsync -u ours-1 one --table '0 32768 linear /dev/loop0 0' && "
               "dmsetup create --noudevsync two --table '0 32768 linear /dev/loop0 32768'")
    minor = server.run("dmsetup info -c --noheadings -o minor one").strip()
    mapped = wwid(pair, stack, f"/dev/dm-{minor}")
    assert identity(mapped, f"ibnbd-demo-dev-dm-{minor}") not in (first, second)
    # One without a UUID is called by its name, and so is a disk in memory.
    minor = server.run("dmsetup info -c --noheadings -o minor two").strip()
    assert wwid(pair, stack, f"/dev/dm-{minor}") == f"ibnbd-demo-dev-dm-{minor}"
    assert wwid(pair, stack, server.null_blk(size_mb=16)) == "ibnbd-demo-dev-nullb0"
    server.run("dmsetup remove --noudevsync one; dmsetup remove --noudevsync two; "
               "losetup -d /dev/loop0; losetup -d /dev/loop1; rm /tmp/a /tmp/b")


def start_udev(client) -> Job:
    """Starts the daemon with this project's rules."""
    client.run("mkdir -p /run/udev/rules.d")
    client.push("/run/udev/rules.d/60-ibnbd.rules", (TOP / "tools/udev/60-ibnbd.rules").read_text())
    daemon = client.start("exec /usr/lib/systemd/systemd-udevd 2>&1")
    client.wait_until("[ -S /run/udev/control ]")
    return daemon


def stop_udev(client, daemon: Job) -> None:
    daemon.kill()
    daemon.wait(20, check=False)
    client.run("rm -rf /run/udev /dev/disk")


def test_udev_makes_links(pair, stack):
    server, client = pair
    # The second partition is empty.
    server.run(f"modprobe loop && truncate -s 64M {IMAGE} && printf ',32M,L\\n,,L\\n' | sfdisk -q -X gpt {IMAGE} && "
               f"losetup -P /dev/loop0 {IMAGE} && mkfs.ext4 -q -L ours /dev/loop0p1")
    blockdev.load(pair, stack)
    daemon = start_udev(client)
    events = uevents.listen(client)
    client.run(stack.map_device("/dev/loop0"))
    # The second one when there are files: rules of others (LVM, md) want it to be "add", too.
    for name in ("ibnbd0", "ibnbd0/ibnbd0p1"):
        added = f"add@/devices/virtual/block/{name} "
        wait_for(lambda: events.text.count(added) == 2, 30, f"two events for {name}")
    events.kill()
    events.wait(20, check=False)
    name = client.run(f"cat {WWID}").strip()
    uuid = server.run("blkid -s UUID -o value /dev/loop0p1").strip()
    part = server.run("blkid -s PARTUUID -o value /dev/loop0p1").strip()
    empty = server.run(f"sfdisk --part-uuid {IMAGE} 2").strip().lower()
    links = {
        "by-ibnbd/demo/dev/loop0": "ibnbd0",
        "by-ibnbd/demo/dev/loop0-part1": "ibnbd0p1",
        f"by-id/{name}": "ibnbd0",
        f"by-id/{name}-part1": "ibnbd0p1",
        f"by-uuid/{uuid}": "ibnbd0p1",
        "by-label/ours": "ibnbd0p1",
        f"by-partuuid/{part}": "ibnbd0p1",
        f"by-partuuid/{empty}": "ibnbd0p2",
    }
    good = " && ".join(f"[ $(readlink -f /dev/disk/{link}) = /dev/{disk} ]" for link, disk in links.items())
    try:
        client.wait_until(good, 60)
    except Exception:
        print(client.run("find /dev/disk; udevadm info --query=property /dev/ibnbd0p1", check=False), daemon.text)
        raise
    assert f"ID_SERIAL={name}" in client.run("udevadm info --query=property /dev/ibnbd0")

    # They stay when the server is out of reach, and nobody reads the disk for them.
    client.run(f"for f in {PATHS}/*/disconnect; do echo 1 > $f; done")
    client.wait_until("[ $(cat /sys/block/ibnbd0/ibnbd/state) = closed ]")
    client.run("SYSTEMD_IGNORE_CHROOT=1 udevadm trigger -c change -y 'ibnbd0*'")
    client.run(f"SYSTEMD_IGNORE_CHROOT=1 udevadm settle -t 30; {good}")
    client.run(f"for f in {PATHS}/*/reconnect; do echo 1 > $f; done")
    client.wait_until("[ $(cat /sys/block/ibnbd0/ibnbd/state) = open ]")
    client.run(f"SYSTEMD_IGNORE_CHROOT=1 udevadm settle -t 30; {good}")

    client.run(stack.unmap())
    client.wait_until("[ -z \"$(find /dev/disk -type l)\" ]", 60)
    stop_udev(client, daemon)
    server.run(f"losetup -d /dev/loop0; rm {IMAGE}")


def test_a_copied_uuid_takes_no_link(pair, stack):
    """A server may copy the UUIDs and the label of a client's own disk: the links stay with that disk."""
    server, client = pair
    make = (f"modprobe loop && truncate -s 64M {IMAGE} && printf 'size=32M,type=L,uuid={COPIED}\n' | "
            f"sfdisk -q -X gpt {IMAGE} && losetup -P /dev/loop0 {IMAGE} && "
            f"mkfs.ext4 -q -U {COPIED} -L ours /dev/loop0p1")
    server.run(make)
    blockdev.load(pair, stack)
    daemon = start_udev(client)
    client.run(make)
    udevadm = "SYSTEMD_IGNORE_CHROOT=1 udevadm"
    links = " ".join(f"/dev/disk/{link}" for link in (f"by-uuid/{COPIED}", "by-label/ours", f"by-partuuid/{COPIED}"))

    def lead_to(disk: str) -> None:
        client.run(f"{udevadm} settle -t 30")
        found = client.run(f"readlink -f {links}").split()
        assert found == [f"/dev/{disk}"] * 3, found

    client.run(f"{udevadm} trigger -c change -w /dev/loop0 /dev/loop0p1")
    lead_to("loop0p1")
    client.run(stack.map_device("/dev/loop0"))
    client.wait_until("[ -e /dev/disk/by-ibnbd/demo/dev/loop0-part1 ]", 60)
    lead_to("loop0p1")
    client.run(f"{udevadm} trigger -c change -w /dev/ibnbd0 /dev/ibnbd0p1")
    lead_to("loop0p1")
    # Without a disk of the client's own, the links are those of the mapped disk.
    client.run(f"losetup -d /dev/loop0 && rm {IMAGE}")
    client.wait_until("[ ! -e /dev/loop0p1 ]")
    lead_to("ibnbd0p1")
    client.run(stack.unmap())
    stop_udev(client, daemon)
    server.run(f"losetup -d /dev/loop0; rm {IMAGE}")
