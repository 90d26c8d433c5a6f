# SPDX-License-Identifier: GPL-2.0
"""A client whose root file system is a disk of the server, which its initramfs maps.  Only with --kernel
stock."""

import pytest

from testbed import root_disk, services
from testbed.lab import wait_for

# The client is shut down when it ends.
pytestmark = pytest.mark.fresh


def shut_down(client, image) -> None:
    client.start("systemctl reboot")
    wait_for(lambda: not client.alive, 180, "the client has shut down")
    root_disk.check_unmounted(image, client)


def test_a_machine_boots_from_a_disk_of_the_server(installed):
    """It waits for the server, boots when that has come, and leaves a clean file system when it is rebooted; it
    waits for a reboot of the server, too.  Files that map nothing at boot make no initramfs."""
    only_by_its_unit = root_disk.SESSION + "auto = false\n"
    assert "E: ibnbd: the files in /etc/ibtrs/root map no disk" in root_disk.refused(installed, only_by_its_unit)
    by_name = root_disk.SESSION.replace('name = "demo"\n', 'servers = ["localhost"]\n')
    why = root_disk.refused(installed, by_name)
    assert "the session of localhost has no name" in why and "localhost is not an address" in why
    server = installed.server
    key = server.run("ibnbd key new")
    image = root_disk.make(installed, key)
    # Root alone may read the key in there.
    assert installed.boots["client"].initrd.stat().st_mode & 0o077 == 0

    client = installed.launch("client")
    wait_for(lambda: "ibnbd: tried again after 5 s" in "\n".join(client.log.lines()), 400,
             "the initramfs says that it waits")
    said = "\n".join(client.log.lines())
    assert "Begin: Mapping the root disk" in said and "nobody listens on the server's port (ECONNREFUSED)" in said
    server.add_disk(image)
    services.keep(installed, "server", "/etc/ibtrs/server.toml", services.IN_CONFIGFS)
    services.keep_key(installed, "server", "demo", key)
    server.run("udevadm settle && systemctl daemon-reload && systemctl start ibnbd-server", timeout=120)
    client = installed.ready("client")

    def is_the_root() -> None:
        source, kind, options = client.run("findmnt --noheadings --output SOURCE,FSTYPE,OPTIONS /").split()
        assert source == "/dev/ibnbd0" and kind == "ext4" and "rw" in options.split(",")
        assert client.run("cat /sys/class/ibtrs-client/demo/paths/*/key_id") == "default"
        assert client.run("cat /sys/class/ibtrs-client/demo/queue_timeout_s") == "-1"

    is_the_root()
    client.run("head -c 8M /dev/urandom > /root/file && sha256sum /root/file > /root/sums && sync /root/file /root/sums")
    shut_down(client, image)

    client = installed.reboot("client")
    is_the_root()
    client.run("sha256sum --check --quiet /root/sums")
    assert not any("EXT4-fs" in line and "recovery" in line for line in client.log.lines())

    # The root waits for the server, with a program that goes on writing to it.
    writer = client.start("n=0; while [ ! -e /root/stop ]; do n=$((n + 1)); echo $n > /root/new && sync /root/new && "
                          "mv /root/new /root/number && echo $n && sleep 0.2; done")
    wait_for(lambda: writer.text.count("\n") > 2, 60, "it writes")
    server.start("systemctl reboot")
    wait_for(lambda: not server.alive, 180, "the server has shut down")
    installed.reboot("server", [image])
    done = writer.text.count("\n")
    wait_for(lambda: writer.text.count("\n") > done + 2, 240, "it goes on")
    client.run("touch /root/stop")
    writer.wait(60)
    assert client.run("dmesg | grep -E 'has lost its write cache|I/O error|EXT4-fs.*error' || true") == ""
    shut_down(client, image)
