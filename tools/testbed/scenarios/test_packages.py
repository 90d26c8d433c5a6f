# SPDX-License-Identifier: GPL-2.0
"""Our packages on Debian's own kernel, from installation to removal: the services of both guests
apply the files in /etc/ibtrs at each boot.  scripts/package-tree.sh installs the packages.  Only
with --kernel stock."""

import re

import pytest

from testbed import fio, services
from testbed.lab import wait_for
from testbed.paths import TOP

MODULES = {"ibtrs_core", "ibtrs_client", "ibtrs_server", "ibnbd_client", "ibnbd_server", "ibmsg"}
PACKAGES = "ibtrs-dkms ibtrs-tools libibmsg-dev"
# What DKMS and the packages make, of which dpkg has no list.
MADE = "/lib/modules/*/updates /var/lib/dkms/ibtrs /var/lib/ibtrs /usr/src/ibtrs-*"
SUMS = "cd /mnt/disk && sha256sum *.py"

# The packages are gone when it ends.
pytestmark = pytest.mark.fresh


def modules_of(guest) -> set[str]:
    """The files of our modules that modprobe knows."""
    listed = guest.run("cat /lib/modules/$(uname -r)/modules.dep")
    return set(re.findall(r"^([^:\s]*/ib(?:(?:trs|nbd)_\w+|msg)\.ko[^:\s]*):", listed, re.MULTILINE))


def shut_down(guest) -> None:
    """As an administrator does it who reboots the machine."""
    guest.start("systemctl reboot")
    wait_for(lambda: not guest.alive, 180, f"{guest.name} has shut down")
    assert "systemd-shutdown[1]: Rebooting." in "\n".join(guest.log.lines())


def upgrade(guest) -> None:
    """The steps of dpkg: disks stay mapped, and metrics are served by the newer version."""
    def started(unit):
        return guest.run(f"systemctl show --property ExecMainStartTimestampMonotonic {unit}")

    before = started("ibnbd-client"), started("ibnbd-metrics")
    steps = ("prerm upgrade 9", "preinst upgrade 0", "postrm upgrade 9", "postinst configure 0")
    guest.run("cd /var/lib/dpkg/info; " + " && ".join(
        f"([ ! -e ibtrs-tools.{step.split()[0]} ] || DPKG_MAINTSCRIPT_PACKAGE=ibtrs-tools ./ibtrs-tools.{step})"
        for step in steps))
    guest.wait_until("systemctl is-active ibnbd-metrics")
    assert started("ibnbd-client") == before[0] and started("ibnbd-metrics") != before[1]


def purge(guest) -> None:
    files = guest.run(f"dpkg -L {PACKAGES} | sort -u").split("\n")
    ours = [file for file in files if re.search("ibtrs|ibnbd|ibmsg", file)]
    assert {"/usr/lib/udev/rules.d/60-ibnbd.rules", "/usr/bin/ibnbd", "/usr/include/ibmsg.h"} <= set(ours) and len(ours) > 100
    guest.run(f"DEBIAN_FRONTEND=noninteractive apt-get purge -qy {PACKAGES}", timeout=600)
    guest.push("/tmp/files", "\n".join(ours) + "\n")
    left = guest.run(f"xargs ls -d < /tmp/files 2> /dev/null; ls -d {MADE} 2> /dev/null; "
                     "ls /var/lib/dpkg/info | grep -E '^ibtrs|ibmsg'; find /etc/systemd -name '*ibnbd*' -o -name '*ibmsg*'", check=False)
    assert not left, left
    assert not guest.ok("systemctl is-active ibnbd-metrics || pgrep -x 'ibnbd|ibmsg'")
    assert not modules_of(guest)


def exchange_messages(guest) -> None:
    """A unit serves a portal with an example; another one is compiled with the header of libibmsg-dev."""
    # This Debian has no pages and no examples, which dpkg leaves out.
    listed = guest.run("dpkg -L libibmsg-dev")
    assert {"/usr/share/man/man2/ioctl_ibmsg_call.2.gz", "/usr/share/man/man4/ibmsg.4.gz",
            "/usr/share/doc/libibmsg-dev/examples/call.c"} <= set(listed.split())
    for name in ("echo.py", "call.c", "common.h"):
        guest.push(f"/usr/local/src/{name}", (TOP / "tools/examples" / name).read_text())
    assert not guest.ok("systemctl start ibmsg@echo && systemctl is-active ibmsg@echo"), "there is no program"
    guest.run("mkdir -p /etc/ibtrs/portals")
    guest.push("/etc/ibtrs/portals/echo", "#!/bin/sh\nexec python3 /usr/local/src/echo.py inherited\n", 0o755)
    # It is bound when the unit has started.
    guest.run("systemctl enable --now ibmsg@echo")
    assert guest.run("ibmsg call local echo hello") == "hello"
    guest.run("cd /usr/local/src && cc -Wall -Wextra -Werror -o /tmp/call call.c")
    assert guest.run("/tmp/call ask echo hello") == "hello"
    # To bind any portal, and no more.
    assert guest.run("systemctl show -P CapabilityBoundingSet ibmsg@echo") == "cap_net_admin"
    guest.run("systemctl stop ibmsg@echo")
    assert guest.run("ibmsg call local echo hello", check=False).status == 3
    # The removal of the package stops it.
    guest.run("systemctl start ibmsg@echo")


def test_from_installation_to_purge(installed, stack):
    """A disk is mapped, fio finds every byte, both machines are rebooted, the client first; it
    is up without the disk, and mounts it when the server has come.  Of the packages nothing is
    left in the end."""
    server, client = installed
    assert modules_of(client) == {f"updates/dkms/{module}.ko" for module in MODULES}
    # systemd finds no fault with the units, each of which it would say.
    units = ("ibnbd-client.service ibnbd-server.service ibnbd-metrics.service ibnbd-key@demo.service "
             "ibnbd@demo-data.service ibmsg@echo.service ibmsg-rules.service")
    assert client.run(f"systemd-analyze verify --man=no {units} 2>&1") == ""
    image = services.image(installed, size_mb=128)
    server.add_disk(image)
    services.configure(installed)
    # Mapped before it is exported: the service asks again.
    client.run("systemctl start ibnbd-client")
    server.run("udevadm settle && systemctl start ibnbd-server")
    client.wait_until(f"[ -e {services.DISK} ]", 120)
    figures = fio.run(client, f"--name=verify --filename={services.DISK} --direct=1 --ioengine=io_uring --size=16m "
                              "--rw=randwrite --bsrange=512-256k --iodepth=32 --verify=crc32c --verify_fatal=1")
    assert figures.read.bytes >= 16 << 20

    client.run(f"mkfs.ext4 -q {services.DISK} && udevadm settle")
    services.add_to_fstab(installed, client.run(f"blkid -o value -s UUID {services.DISK}"))
    client.run("cp -a /usr/lib/python3*/[a-m]*.py /mnt/disk")
    before = client.run(SUMS)
    assert before.count("\n") > 50

    shut_down(client)
    shut_down(server)
    client = installed.reboot("client")
    # The machine is up without the disk, and what waits for it goes on waiting.
    client.wait_until("systemctl is-active multi-user.target", 120)
    client.wait_until("journalctl --boot --unit ibnbd-client | grep -q 'steps could not be done'", 120)
    assert not client.ok("findmnt /mnt/disk") and '"disks": []' in client.run("ibnbd list --output json")
    installed.reboot("server", [image])
    client.wait_until("findmnt /mnt/disk", 180)
    assert client.run(SUMS) == before
    # It was unmounted when the client shut down: nothing had to be made good.
    assert not any("EXT4-fs" in line and "recovery" in line for line in client.log.lines())
    assert client.run("ibnbd status").startswith("OK: 1 of 1 disks open")
    # In its sandbox the service reads what root reads.
    client.run("systemctl start ibnbd-metrics")
    client.wait_until("(: < /dev/tcp/127.0.0.1/11234) 2> /dev/null")
    metrics = client.run(r"exec 3<> /dev/tcp/127.0.0.1/11234 && printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3 && cat <&3")
    assert " 200 OK" in metrics and 'ibnbd_disk_open{disk="ibnbd0"} 1' in metrics, metrics
    assert "ibnbd_unreadable_files 0" in metrics and 'ibtrs_path_connected{session="demo"' in metrics
    upgrade(client)
    client.wait_until("systemctl show ibnbd-client | grep SubState=exited")
    installed.server.wait_until("systemctl show ibnbd-server | grep SubState=exited")

    client.run("umount /mnt/disk && systemctl stop ibnbd-client")
    assert client.run("ls /sys/block | grep ^ibnbd || true") == ""
    client.run(stack.unload("client"))
    exchange_messages(client)
    # What an administrator may have left on.
    client.run("systemctl enable ibnbd@demo-data ibnbd-key@demo && systemctl is-active ibnbd-metrics")
    purge(client)
