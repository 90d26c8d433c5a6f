# SPDX-License-Identifier: GPL-2.0
"""The services of our packages: stopped and started, and during a reboot of one side.
test_packages.py reboots both.  Only with --kernel stock."""

import errno
import os
import shutil
import time
from pathlib import Path

import fsload
import pytest

from testbed import accel, paths, services, sysfs_made
from testbed.lab import Solo, wait_for

pytestmark = pytest.mark.fresh
# How long a server is away; IBTRS_LONG=1 makes it the hour after which others have given up.
AWAY_S = 3600 if os.environ.get("IBTRS_LONG") else 60
# Those of the command; the first one loads the others.
LIBRARIES = ("ld-linux-x86-64.so.2", "libc.so.6", "libm.so.6", "libgcc_s.so.1")


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
    """A disk in use stays mapped; the service asks for missing disks again until it is
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


def test_keys_are_credentials(served):
    """The keys are loaded before the services map and export, each time these start."""
    server, client = served
    no_modules = "for module in ibtrs_client ibtrs_server ibtrs_core; do [ ! -e /sys/module/$module ] || rmmod $module; done"
    client.run("systemctl stop ibnbd-client", timeout=120)
    client.run("umount /mnt/disk; ibnbd unmap --unused && modprobe -r ibnbd_client")
    server.run(f"systemctl stop ibnbd-server && {no_modules}", timeout=120)
    server.push("/etc/ibtrs/server.toml", services.IN_CONFIGFS)
    text = client.run("ibnbd key new")
    for guest in served:
        guest.push("/root/demo.key", text + "\n")
        guest.run("mkdir -p /etc/ibtrs/keys && systemd-creds encrypt /root/demo.key /etc/ibtrs/keys/demo.cred && "
                  "rm /root/demo.key && systemctl enable ibnbd-key@demo")
        assert "ibtrs-key" not in guest.run("cat /etc/ibtrs/keys/demo.cred")
    # The second time, the modules and the keyring have gone meanwhile.
    for _ in range(2):
        server.run("systemctl start ibnbd-server", timeout=120)
        client.run("systemctl start ibnbd-client", timeout=120)
        client.wait_until(f"[ -e {services.DISK} ]", 120)
        assert "demo" in client.run("ibnbd key list") and "demo" in server.run("ibnbd key list")
        assert client.run("cat /sys/class/ibtrs-client/demo/paths/*/key_id") == "default"
        client.run("systemctl stop ibnbd-client", timeout=120)
        assert disks(client) == []
        client.run(f"modprobe -r ibnbd_client && {no_modules}")
        server.run(f"systemctl stop ibnbd-server && {no_modules}", timeout=120)
    server.run("systemctl start ibnbd-server", timeout=120)
    client.run("systemctl start ibnbd-client", timeout=120)
    client.wait_until(f"[ -e {services.DISK} ]", 120)
    server.run("systemctl restart ibnbd-server", timeout=120)
    assert "demo" in server.run("ibnbd key list")
    client.run(f"dd if={services.DISK} of=/dev/null bs=4k count=1 iflag=direct status=none", timeout=120)
    client.run(f"systemctl stop ibnbd-client && modprobe -r ibnbd_client && {no_modules}", timeout=120)
    server.run("systemctl stop ibnbd-server", timeout=120)
    # Without its key, the client starts and maps nothing.
    client.run("echo AAAA > /etc/ibtrs/keys/demo.cred")
    server.run("systemctl start ibnbd-server", timeout=120)
    client.run("systemctl start ibnbd-client", timeout=120)
    # It tries again after a time, and keeps no service waiting.
    wait_for(lambda: {"activating", "auto-restart"} <= set(state(client, "ibnbd-key@demo")), 60, "the unit tries again")
    assert "failed" not in state(client, "ibnbd-client")
    assert disks(client) == []
    client.run("systemctl stop ibnbd-client; modprobe -r ibnbd_client; systemctl disable --now ibnbd-key@demo", check=False)


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
    # The server may be reset first, and what waits for it would do so for ten minutes.
    client.run("umount /mnt/disk", timeout=240)


def test_the_server_is_shut_down_before_the_client(served):
    """The client has a disk mounted, and services that stop it: it gives up after queue_timeout_s what it has
    not written, and is gone."""
    server, client = served
    client.run("echo 60 > /sys/class/ibtrs-client/demo/queue_timeout_s && dd if=/dev/zero of=/mnt/disk/zeroes bs=1M count=16")
    server.start("systemctl poweroff")
    wait_for(lambda: not server.alive, 180, "the server has gone")
    client.start("systemctl poweroff")
    wait_for(lambda: not client.alive, 240, "the client has gone")


def test_exports_of_hosts_after_reboots(served):
    """The contents of configfs and the keyring are gone after a reboot: the services create them again from
    the files, in an order in which nobody gets more than before."""
    server, client = served
    client.run("umount /mnt/disk && systemctl stop ibnbd-client && ibnbd unmap --unused && modprobe -r ibnbd_client",
               timeout=120)
    server.run("systemctl stop ibnbd-server && dmesg -C", timeout=120)
    for name in ("demo", "other"):
        text = client.run("ibnbd key new")
        for guest in ("server", "client"):
            services.keep_key(served, guest, name, text)
    services.keep(served, "server", "/etc/ibtrs/server.toml", services.LIMITED + services.PORT)
    services.keep(served, "client", "/etc/ibtrs/client.toml", services.CLIENT)
    server.run("systemctl daemon-reload && systemctl start ibnbd-server", timeout=120)
    client.run("systemctl daemon-reload && systemctl start ibnbd-client", timeout=120)
    client.wait_until("findmnt /mnt/disk || mount /mnt/disk", 120)
    client.run("echo kept > /mnt/disk/file && sync")

    def is_as_before() -> None:
        server, client = served
        client.wait_until("echo 3 > /proc/sys/vm/drop_caches && grep -qx kept /mnt/disk/file", 240)
        assert set(client.run("cat /sys/class/ibtrs-client/demo/paths/*/key_id").split()) == {"default"}
        tree = "/sys/kernel/config/ibnbd"
        assert server.run(f"cd {tree} && ls exports/data/allowed_hosts && cat ports/left/address exports/data/enable"
                          ).split() == ["demo", "ip:10.0.1.1", "1"]
        # Nobody was let in for another reason, while the services were still at it.
        granted = [line for line in server.run("dmesg").splitlines() if "granted" in line]
        assert granted and all("export data: granted, rw: its host is in allowed_hosts" in line for line in granted)
        # Its limits hold: another path of it, and one from an address that is not its own.
        device = client.run("ip -brief addr show to 10.0.1.2 | cut -d' ' -f1").split("@")[0].strip()
        for last, number in ((3, errno.EDQUOT), (4, errno.EACCES)):
            client.run(f"ip addr replace 10.0.1.{last}/24 dev {device}")
            add = f"echo ip:10.0.1.{last},ip:10.0.1.1 > /sys/class/ibtrs-client/demo/add_path"
            wait_for(lambda: os.strerror(number) in client.run(add, timeout=120, check=False), 60, f"{add}: refused")
            client.run(f"ip addr del 10.0.1.{last}/24 dev {device}")
        # The other host sees nothing and opens nothing.
        assert "data" in client.run("ibnbd discover 10.0.1.1 --session demo", timeout=120)
        assert "data" not in client.run("ibnbd discover 10.0.1.1 --session other 2>&1", timeout=120, check=False)
        assert "other: ip:10.0.1.2: discovery: exports listed: 0" in server.run("dmesg")
        answer = client.run("ibnbd map 10.0.1.1 data --session other 2>&1", timeout=120, check=False)
        assert not answer.ok and "other: ip:10.0.1.2: export data: refused, rw: its host is not" in server.run("dmesg")

    is_as_before()
    # The server alone, whose client has the file system mounted; then the client; then both.
    served.reboot("server", [served.image])
    is_as_before()
    served.reboot("client")
    is_as_before()
    served.reboot("server", [served.image])
    served.reboot("client")
    is_as_before()


@pytest.mark.thorough
def test_a_server_that_comes_up_late(served):
    """After a power cut of both: the client is up without the disk, its service neither gives up nor floods the
    journal, and the disk is mapped and mounted soon after the server has come."""
    server, client = served
    client.run("echo kept > /mnt/disk/file && umount /mnt/disk", timeout=120)
    server.kill()
    client = served.reboot("client")
    client.wait_until("systemctl is-active multi-user.target", 120)
    time.sleep(AWAY_S)
    assert sorted(state(client, "ibnbd-client")) == ["0", "active", "running"]
    assert client.run("systemctl show --value --property NRestarts ibnbd-client") == "0"
    attempts = int(client.run("journalctl --boot --unit ibnbd-client | grep -c 'tried again after'"))
    # At least one in a minute, and pauses of 30 s at last.
    assert 1 <= attempts <= 10 + AWAY_S / 30
    served.reboot("server", [served.image])
    client.wait_until("findmnt /mnt/disk", 240)
    assert client.run("cat /mnt/disk/file") == "kept"
    client.run("umount /mnt/disk", timeout=120)


@pytest.fixture
def one_by_one(installed):
    """Two disks of one session: the client's service maps "data", and a unit of its own "a-b"."""
    server, client = installed
    server.add_disk(services.image(installed, size_mb=128))
    server.null_blk("nullb0", size_mb=128)
    services.keep(installed, "server", "/etc/ibtrs/server.toml", services.SERVER + services.FURTHER_EXPORT)
    services.keep(installed, "client", "/etc/ibtrs/client.toml", services.CLIENT + services.FURTHER_DISK)
    server.run("udevadm settle && systemctl start ibnbd-server")
    client.run("systemctl start ibnbd-client && mkdir -p /mnt/disk")
    return installed


def mapped(client) -> list[str]:
    return client.run("cat /sys/block/ibnbd*/ibnbd/mapping_path 2> /dev/null | sort").split()


def test_a_unit_for_one_disk(one_by_one):
    """The unit and the client's service leave each other's disk alone, and what is in use stays mapped."""
    client = one_by_one.client
    unit = f"'{services.UNIT}'"
    assert client.run("systemd-escape --template=ibnbd@.service demo/a-b") == services.UNIT
    assert client.run(f"systemd-analyze verify --man=no {unit} 2>&1") == ""
    assert mapped(client) == ["data"]
    client.run(f"systemctl enable --now {unit} && udevadm settle")
    assert client.run(f"systemctl is-enabled {unit}") == "enabled"
    assert mapped(client) == ["a-b", "data"] and sorted(state(client, unit)) == ["0", "active", "exited"]
    client.run("systemctl stop ibnbd-client")
    assert mapped(client) == ["a-b"]
    client.run(f"systemctl start ibnbd-client && systemctl reload ibnbd-client {unit}")
    assert mapped(client) == ["a-b", "data"]

    client.run(f"mkfs.ext4 -q {services.FURTHER} && udevadm settle && mount {services.FURTHER} /mnt/disk")
    client.run(f"systemctl stop {unit}")
    assert mapped(client) == ["a-b", "data"] and "inactive" in state(client, unit)
    assert "stays, as it is in use" in client.run(f"journalctl --boot --unit {unit}")
    client.run(f"touch /mnt/disk/file && umount /mnt/disk && systemctl start {unit} && systemctl stop {unit}")
    assert mapped(client) == ["data"]
    assert client.run("ibnbd save --dry-run --prune").count("auto = false   # its unit maps it") == 1

    # Of several at once the kernel lets one map it, and the others find it there.
    client.run("jobs=; for n in 1 2 3 4; do ibnbd apply --disk demo/a-b & jobs=\"$jobs $!\"; done; "
               "for job in $jobs; do wait $job || exit 1; done")
    assert mapped(client) == ["a-b", "data"]
    client.run(f"systemctl start {unit} && systemctl stop {unit}")
    assert mapped(client) == ["data"]
    assert not client.ok("systemctl start ibnbd@demo-missing")
    assert sorted(state(client, "ibnbd@demo-missing")) == ["3", "failed", "failed"]
    assert "remedy: take one of: demo/data demo/a-b" in client.run("journalctl --boot --unit ibnbd@demo-missing")


def test_a_mount_that_requires_its_disk(one_by_one):
    """The disk is mapped at boot because a mount of fstab needs it, and unmapped when its unit stops, which
    unmounts first, as a shutdown does."""
    client = one_by_one.client
    unit = f"'{services.UNIT}'"
    client.run(f"systemctl start {unit} && udevadm settle && mkfs.ext4 -q {services.FURTHER} && udevadm settle")
    uuid = client.run(f"blkid -o value -s UUID {services.FURTHER}")
    client.run(f"systemctl stop {unit}")
    assert mapped(client) == ["data"]
    services.keep(one_by_one, "client", "/etc/fstab", services.FSTAB_UNIT.format(uuid=uuid))
    client.run("systemctl daemon-reload && systemctl start mnt-disk.mount", timeout=120)
    assert mapped(client) == ["a-b", "data"]
    client.run("echo kept > /mnt/disk/file")

    client.start("systemctl reboot")
    wait_for(lambda: not client.alive, 180, "the client has shut down")
    client = one_by_one.reboot("client")
    client.wait_until("findmnt /mnt/disk", 180)
    assert client.run("cat /mnt/disk/file") == "kept"
    assert not any("EXT4-fs" in line and "recovery" in line for line in client.log.lines())
    assert "active" in state(client, unit) and mapped(client) == ["a-b", "data"]

    client.run(f"systemctl stop {unit}", timeout=120)
    assert not client.ok("findmnt /mnt/disk") and mapped(client) == ["data"]

    client.push("/etc/fstab", services.FSTAB_AUTOMOUNT.format(uuid=uuid))
    client.run("systemctl daemon-reload && systemctl start mnt-disk.automount")
    assert mapped(client) == ["data"]
    assert client.run("cat /mnt/disk/file", timeout=120) == "kept"
    assert mapped(client) == ["a-b", "data"]
    client.run(f"systemctl stop mnt-disk.automount {unit}", timeout=120)
    assert mapped(client) == ["data"]


@pytest.mark.stock
def test_the_cost_of_a_list(request):
    """The command of the package, on a machine with 200 disks and 64 sessions. Instructions are counted: what
    they take of an emulator's time depends on what else the host does, up to four times as much."""
    tree = paths.package_tree() / "usr"
    with Solo(request.config.getoption("kernel"), how=accel.counting(), cpus=1) as lab:
        # The guest's own libraries may be older than Debian's, for which the package is built.
        share = lab.guest.share / "command"
        share.mkdir()
        for name in ("bin/ibnbd", *(f"lib/x86_64-linux-gnu/{library}" for library in LIBRARIES)):
            shutil.copy(tree / name, share)
        sysfs_made.unpack(lab.guest, disks=200, sessions=64)
        lab.guest.run("cp -r /mnt/share/command /tmp/bin")
        listing = f"/tmp/bin/{LIBRARIES[0]} --library-path /tmp/bin /tmp/bin/ibnbd --root {sysfs_made.ROOT} list"
        assert lab.guest.run(f"{listing} | wc -l").strip() == "201"
        # 29 were counted: 0.12 s where an emulator executes 250 million instructions in a second.
        assert lab.guest.counted_ms(listing) < 40
