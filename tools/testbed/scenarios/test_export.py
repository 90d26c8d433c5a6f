# SPDX-License-Identifier: GPL-2.0
"""Who may use a disk of the server, when a client does."""

import errno
import os

import pytest

from testbed import blockdev

pytestmark = pytest.mark.fast

MAP = 'echo "sessname={} path=ip:10.0.1.1 device_path={} access_mode={}" > /sys/class/ibnbd-client/ctl/map_device'
MOUNT = "mkdir -p /mnt/disk && mount {} /mnt/disk"


def refused(client, session: str, device: str, mode: str) -> str:
    answer = client.run(MAP.format(session, device, mode), check=False)
    assert not answer.ok
    return answer


def test_what_clients_write_to_is_kept_from_the_server(pair, stack):
    server, client = pair
    device = blockdev.map_new(pair, stack)
    client.run(f"mkfs.ext4 -q {stack.disk}")
    assert blockdev.is_taken(server, device) and not server.ok(MOUNT.format(device))
    # Other clients share it as far as the modes allow.
    assert os.strerror(errno.EPERM) in refused(client, "other", device, "rw")
    client.run(MAP.format("other", device, "migration"))
    client.run(MAP.format("third", device, "ro"))
    client.run(f"{stack.unmap(1)} && {stack.unmap(0)}")
    # One that only reads keeps nobody away.
    server.run(MOUNT.format(device))
    assert os.strerror(errno.EBUSY) in refused(client, "demo", device, "rw")
    server.run("umount /mnt/disk")
    client.run(stack.map_device(device))


def test_what_the_server_uses_is_kept_from_clients(pair, stack):
    server, client = pair
    device = server.null_blk()
    server.run(f"mkfs.ext4 -q {device} && {MOUNT.format(device)}")
    blockdev.load(pair, stack)
    assert os.strerror(errno.EBUSY) in refused(client, "demo", device, "rw")
    client.run(MAP.format("demo", device, "ro"))
    assert "opened /dev/nullb0 as device" in server.run("dmesg | tail -n 5")
    client.run(stack.unmap())
    server.run("umount /mnt/disk")
    client.run(stack.map_device(device))


def test_a_size_is_written_by_hand(pair, stack):
    client = pair.client
    blockdev.map_new(pair, stack, size_mb=16)
    resize = "/sys/block/ibnbd0/ibnbd/resize"
    for wrong in ("", "0", "-1", "x", "16x", str(1 << 64)):
        assert not client.ok(f"echo '{wrong}' > {resize}"), wrong
    client.run(f"echo 0x1000 > {resize}")
    assert client.run("cat /sys/block/ibnbd0/size").strip() == "4096"
    # What the server does not have is refused there.
    client.run(f"echo {64 << 11} > {resize}")
    assert not client.ok(f"dd if={stack.disk} of=/dev/null bs=1M skip=20 count=1 iflag=direct")
    assert client.ok(f"dd if={stack.disk} of=/dev/null bs=1M skip=15 count=1 iflag=direct")
