# SPDX-License-Identifier: GPL-2.0
"""Our packages on Debian's own kernel, from their installation to their end; see
scripts/package-tree.sh, which installs them.  Only with --kernel stock."""

import re

import pytest

from testbed import fio
from testbed.lab import wait_for

MODULES = {"ibtrs_core", "ibtrs_client", "ibtrs_server", "ibnbd_client", "ibnbd_server"}
PACKAGES = "ibtrs-dkms ibtrs-tools"
# What DKMS and the packages make, of which dpkg has no list.
MADE = "/lib/modules/*/updates /var/lib/dkms/ibtrs /var/lib/ibtrs /usr/src/ibtrs-*"
SUMS = "cd /mnt/disk && sha256sum *.py"

# The packages are gone when it ends.
pytestmark = pytest.mark.fresh


def modules_of(guest) -> set[str]:
    """The files of our modules that modprobe knows."""
    listed = guest.run("cat /lib/modules/$(uname -r)/modules.dep")
    return set(re.findall(r"^([^:\s]*/ib(?:trs|nbd)_\w+\.ko[^:\s]*):", listed, re.MULTILINE))


def map_disk(client, stack, device: str) -> str:
    """Returns the name that the udev rules of the package gave it."""
    client.run(f"{stack.load_client()} && {stack.map_device(device)} && udevadm settle")
    name = client.run("find /dev/disk/by-ibnbd/demo -type l")
    assert client.run(f"readlink -f {name}") == stack.disk
    return name


def mount(client, name: str) -> None:
    """As fstab has it, which finds the file system by its UUID."""
    uuid = client.run(f"blkid -o value -s UUID {name}")
    client.run("mkdir -p /mnt/disk && "
               f"echo 'UUID={uuid} /mnt/disk ext4 _netdev,noauto 0 0' > /etc/fstab && mount /mnt/disk")


def reboot(pair):
    """As an administrator does it, with the file system mounted."""
    client = pair.client
    client.start("systemctl reboot")
    wait_for(lambda: not client.alive, 180, "the client has shut down")
    assert "systemd-shutdown[1]: Rebooting." in "\n".join(client.log.lines())
    return pair.reboot("client")


def purge(guest) -> None:
    files = guest.run(f"dpkg -L {PACKAGES} | sort -u").split("\n")
    ours = [file for file in files if re.search("ibtrs|ibnbd", file)]
    assert "/usr/lib/udev/rules.d/60-ibnbd.rules" in ours and len(ours) > 100
    guest.run(f"DEBIAN_FRONTEND=noninteractive apt-get purge -qy {PACKAGES}", timeout=600)
    guest.push("/tmp/files", "\n".join(ours) + "\n")
    left = guest.run(f"xargs ls -d < /tmp/files 2> /dev/null; ls -d {MADE} 2> /dev/null; "
                     "ls /var/lib/dpkg/info | grep ^ibtrs", check=False)
    assert not left, left
    assert not modules_of(guest)


def test_from_installation_to_purge(installed, stack):
    """A disk is mapped, fio finds every byte, ext4 lives through a reboot of the client, and
    of the packages nothing is left."""
    server, client = installed
    assert modules_of(client) == {f"updates/dkms/{module}.ko" for module in MODULES}
    device = server.null_blk(size_mb=128)
    server.run(stack.load_server())
    name = map_disk(client, stack, device)
    figures = fio.run(client, f"--name=verify --filename={name} --direct=1 --ioengine=io_uring --size=16m "
                              "--rw=randwrite --bsrange=512-256k --iodepth=32 --verify=crc32c --verify_fatal=1")
    assert figures.read.bytes >= 16 << 20

    client.run(f"mkfs.ext4 -q {name} && udevadm settle")
    mount(client, name)
    client.run("cp -a /usr/lib/python3*/[a-m]*.py /mnt/disk")
    before = client.run(SUMS)
    assert before.count("\n") > 50

    client = reboot(installed)
    name = map_disk(client, stack, device)
    # It was unmounted when the client shut down: nothing has to be made good.
    assert "needs_recovery" not in client.run(f"dumpe2fs -h {name}")
    client.run(f"e2fsck -f -n {name}")
    mount(client, name)
    assert client.run(SUMS) == before

    client.run(f"umount /mnt/disk && {stack.unmap()} && {stack.unload('client')}")
    purge(client)
