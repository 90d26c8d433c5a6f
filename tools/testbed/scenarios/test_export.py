# SPDX-License-Identifier: GPL-2.0
"""Access of other users to a disk of the server while a client has it open."""

import errno
import os
import re

import pytest

from testbed import blockdev
from testbed.paths import TOP

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
    assert "device /dev/nullb0: granted, ro: " in server.run("dmesg | tail -n 5")
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
    # The server refuses a device that it does not have.
    client.run(f"echo {64 << 11} > {resize}")
    assert not client.ok(f"dd if={stack.disk} of=/dev/null bs=1M skip=20 count=1 iflag=direct")
    assert client.ok(f"dd if={stack.disk} of=/dev/null bs=1M skip=15 count=1 iflag=direct")


@pytest.mark.parametrize("document", ["README.md", "Documentation/reference.md"])
def test_the_first_example_works(pair, stack, document):
    """Types the first example of the documents as it stands there."""
    server, client = pair
    text = (TOP / document).read_text()
    lines = re.search(r"((?:    .+\n)+    modprobe ibnbd_server dev_search_path=\S+\n)", text)[1]
    link = re.search(r"/dev/disk/by-id/\S+", lines)[0]
    mapping = re.search(r"    (echo \"sessname.*map_device)\n", text)[1]
    device, other = server.null_blk(size_mb=16), server.null_blk("nullb1", size_mb=16)
    server.run(f"dmesg --clear; mkdir -p /dev/disk/by-id && ln -s ../../nullb0 {link} && {lines}")
    assert "any machine that reaches the port" not in server.run("dmesg | grep dev_search_path || true")
    client.run(f"{stack.load_client()} && {mapping}")
    client.run(f"dd if=/dev/urandom of={stack.disk} bs=64k count=16 oflag=direct status=none")
    assert blockdev.same_on_both(pair, device, stack.disk, 1)
    # The rest of the machine is out of reach.
    for name in ("nullb1", other, f"../{other}", link):
        assert not client.ok(MAP.format("demo", name, "ro")), name
    client.run(stack.unmap())
    server.run(f"modprobe -r ibnbd_server && rm -r /dev/ibnbd-exports /dev/disk/by-id/{os.path.basename(link)}")


def test_the_operator_is_warned_of_a_search_path_that_is_too_wide(pair):
    server = pair.server
    for wide in ("/", "/dev", "//dev/."):
        server.run(f"dmesg --clear && modprobe ibnbd_server dev_search_path={wide}")
        said = server.run("dmesg --level warn | grep dev_search_path")
        assert f"dev_search_path={wide}: any machine that reaches the port may read every disk" in said
        server.run("modprobe -r ibnbd_server")
    server.run("dmesg --clear && modprobe ibnbd_server dev_search_path=/dev/ibnbd-exports")
    assert not server.ok("dmesg --level warn | grep dev_search_path")
