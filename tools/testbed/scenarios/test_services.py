# SPDX-License-Identifier: GPL-2.0
"""The services of our packages: stopped and started, and during a reboot of one side.
test_packages.py reboots both.  Only with --kernel stock."""

from pathlib import Path

import fsload
import pytest

from testbed import services
from testbed.lab import wait_for

pytestmark = pytest.mark.fresh


@pytest.fixture
def served(installed):
    """A disk that is exported and mapped by the services, with a file system."""
    server, client = installed
    installed.image = services.image(installed, size_mb=128)
    server.add_disk(installed.image)
    services.configure(installed)
    server.run("udevadm settle && systemctl start ibnbd-server")
    client.run("systemctl start ibnbd-client && udevadm settle")
    client.run(f"mkfs.ext4 -q {services.DISK} && udevadm settle")
    services.add_to_fstab(installed, client.run(f"blkid -o value -s UUID {services.DISK}"))
    return installed


def disks(client) -> list[str]:
    return client.run("ls /sys/block | grep ^ibnbd || true").split()


def state(guest, unit: str) -> list[str]:
    return guest.run(f"systemctl show --value --property ActiveState,SubState,ExecMainStatus {unit}").split()


def test_stop_and_start(served):
    """What is in use stays mapped; what is missing is asked for again until the service is
    stopped, which takes away what there is; files that are wrong change nothing."""
    server, client = served
    client.run("systemctl stop ibnbd-client")
    assert disks(client) == ["ibnbd0"] and client.run("echo 1 > /mnt/disk/one && sync && cat /mnt/disk/one") == "1"
    assert "ibnbd0 stays, as it is in use" in client.run("journalctl --boot --unit ibnbd-client")
    client.run("systemctl start ibnbd-client")
    assert sorted(state(client, "ibnbd-client")) == ["0", "active", "exited"]
    client.run("umount /mnt/disk && systemctl stop ibnbd-client")
    assert disks(client) == []

    client.push("/etc/ibtrs/client.toml", services.CLIENT + "[[session.disk]]\ndevice = 'missing'\n")
    client.run("systemctl start ibnbd-client")
    client.wait_until("findmnt /mnt/disk || mount /mnt/disk")
    assert client.run("cat /mnt/disk/one") == "1"
    assert sorted(state(client, "ibnbd-client")) == ["0", "active", "running"]
    assert "1 steps could not be done; tried again after" in client.run("systemctl status ibnbd-client")
    client.run("umount /mnt/disk && systemctl stop ibnbd-client")
    assert disks(client) == [] and "inactive" in state(client, "ibnbd-client")

    client.push("/etc/ibtrs/client.toml", "colour = 'blue'\n")
    assert not client.ok("systemctl start ibnbd-client")
    assert sorted(state(client, "ibnbd-client")) == ["6", "failed", "failed"]

    server.push("/etc/ibtrs/server.toml", services.SERVER + "[[export]]\nname = 'missing'\ndevice = '/dev/missing'\n")
    server.run("systemctl restart ibnbd-server")
    assert sorted(state(server, "ibnbd-server")) == ["0", "active", "running"]
    server.run("systemctl stop ibnbd-server")
    assert not server.ok("test -e /sys/module/ibnbd_server") and "inactive" in state(server, "ibnbd-server")

    # Exports in configfs would keep the module in use.
    server.push("/etc/ibtrs/server.toml", services.IN_CONFIGFS)
    server.run("systemctl start ibnbd-server && test -d /sys/kernel/config/ibnbd/exports/data")
    assert sorted(state(server, "ibnbd-server")) == ["0", "active", "exited"]
    server.run("systemctl stop ibnbd-server")
    assert not server.ok("test -e /sys/module/ibnbd_server") and "inactive" in state(server, "ibnbd-server")


def test_reboot_of_the_server(served):
    """Under load, and its shutdown sets the links down: it has told the client before, so that
    nothing fails and no flush does, though the server's cache is another one afterwards."""
    server, client = served
    client.run("echo 600 > /sys/class/ibtrs-client/demo/queue_timeout_s && mkdir /mnt/disk/files")
    client.push("/tmp/fsload.py", Path(fsload.__file__).read_text())
    files = client.start("python3 /tmp/fsload.py /mnt/disk/files 7")
    flushes = client.start("while [ ! -e /mnt/disk/stop ]; do echo flush > /mnt/disk/flushed && "
                           "sync /mnt/disk/flushed || exit 1; done")
    wait_for(lambda: files.text.count("\n") > 2, 120, "there is load")
    server.start("systemctl reboot")
    wait_for(lambda: not server.alive, 180, "the server has shut down")
    assert files.running and flushes.running
    served.reboot("server", [served.image])
    done = files.text.count("\n")
    wait_for(lambda: files.text.count("\n") > done + 2, 240, "the load goes on")
    client.run("touch /mnt/disk/stop")
    assert files.wait(240).strip("0123456789\n") == ""
    flushes.wait(60)
    client.run("echo 3 > /proc/sys/vm/drop_caches && cd / && sha256sum -c --quiet /mnt/disk/files.sums", timeout=240)
    assert client.run("dmesg | grep -E 'has lost its write cache|I/O error|EXT4-fs.*error' || true") == ""
    assert client.run("cat /sys/block/ibnbd0/ibnbd/cache_lost") == "0"
