# SPDX-License-Identifier: GPL-2.0
"""What people run on a disk, in Debian as it is installed: its kernel, systemd and
udev.  Only with --kernel stock."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from testbed import blockdev
from testbed.lab import wait_for

pytestmark = pytest.mark.links(2)

DISK_MB = 384
SESSION = "/sys/class/ibtrs-client/demo"


@pytest.fixture
def disk(debian, stack) -> str:
    """A disk of the server, mapped over both links; the name that udev gave it."""
    server, client = debian
    device = server.null_blk(size_mb=DISK_MB)
    blockdev.load(debian, stack)
    client.run(f'echo "sessname=demo path=ip:10.0.1.2,ip:10.0.1.1 path=ip:10.0.2.2,ip:10.0.2.1 '
               f'device_path={device}" > {stack.map_file} && udevadm settle')
    wait_for(lambda: blockdev.connected(client) == 2, 60, "both paths are connected")
    name = client.run("find /dev/disk/by-ibnbd/demo -type l")
    assert client.run(f"readlink -f {name}") == stack.disk
    client.run("mkdir -p /mnt/disk")
    return name


def fill(client, folder: str = "/mnt/disk") -> None:
    """Files, and their sums beside them."""
    client.run(f"cp -a /usr/lib/python3* {folder}/ && cd {folder} && find . -type f -path './python*' -print0 | "
               "xargs -0 sha256sum > /tmp/sums && cp /tmp/sums sums && sync", timeout=600)


def check(client, folder: str = "/mnt/disk") -> None:
    """All files are there, and read from the disk."""
    client.run("echo 3 > /proc/sys/vm/drop_caches")
    client.run(f"cd {folder} && cmp sums /tmp/sums && sha256sum --check --quiet sums", timeout=600)


def lose_a_path(client, link: int) -> None:
    path = f"{SESSION}/paths/*@ip:10.0.{link}.1"
    client.run(f"echo 1 > {path}/disconnect && sleep 1 && echo 1 > {path}/reconnect")


@pytest.mark.parametrize("system", ["ext4", "xfs"])
def test_a_file_system_by_its_name(debian, disk, system):
    """fstab finds it by its UUID, which udev has read from it."""
    client = debian.client
    verify = {"ext4": "e2fsck -f -n", "xfs": "xfs_repair -n"}[system]
    client.run(f"mkfs.{system} -q {disk} && udevadm settle", timeout=300)
    uuid = client.run(f"blkid -o value -s UUID {disk}")
    client.run(f"echo 'UUID={uuid} /mnt/disk {system} _netdev,noauto 0 0' > /etc/fstab && mount /mnt/disk")
    with ThreadPoolExecutor() as pool:
        filling = pool.submit(fill, client)
        for link in (1, 2):
            lose_a_path(client, link)
        filling.result()
    check(client)
    client.run(f"umount /mnt/disk && {verify} {disk} && mount /mnt/disk", timeout=300)
    check(client)
    client.run("umount /mnt/disk && : > /etc/fstab && rm -f /tmp/sums")
