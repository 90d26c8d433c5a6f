# SPDX-License-Identifier: GPL-2.0
"""The lines of README on two bare machines with our packages: from no key and no disk to a file system that is there again
after both were rebooted.  Only with --kernel stock."""

import base64
import re

import pytest

from testbed import services
from testbed.guide import commands
from testbed.paths import TOP

pytestmark = pytest.mark.fresh
MOST_COMMANDS = 12
TOKEN = re.compile(r"ibtrs-token-1/\S+")
# By which systemd decrypts credentials: a machine keeps it, and the guest's disk does not.
SECRET = "/var/lib/systemd/credential.secret"
KEY = "/etc/ibtrs/keys/web1.cred"


def walk(lab) -> int:
    """Types the commands of README, and returns their number."""
    token, count = "", 0
    for step in commands((TOP / "README.md").read_text()):
        guest = lab.guests[step.machine]
        answer = guest.run(TOKEN.sub(token, step.command), timeout=180, check=False)
        assert answer.ok, f"{step.command}: {answer}"
        token = next(iter(TOKEN.findall(str(answer))), token)
        count += 1
    return count


def keep_state(lab, name: str, *paths: str) -> None:
    """What these commands have written, a machine has after a reboot."""
    guest = lab.guests[name]
    for path in (*paths, KEY):
        services.keep(lab, name, path, guest.run(f"cat {path}") + "\n")
    lab.files[name][SECRET] = base64.b64decode(guest.run(f"base64 -w 0 {SECRET}"))
    assert guest.run("systemctl is-enabled ibnbd-key@web1") == "enabled"
    services.keep(lab, name, f"/etc/systemd/system/ibnbd-{name}.service.d/web1.conf", services.WANTS_KEY.format(name="web1"))


def test_the_lines_of_readme_lead_to_a_disk_that_stays(installed):
    server, client = installed
    image = services.image(installed, size_mb=256)
    server.add_disk(image)
    server.run("mkdir -p /dev/vg && udevadm settle && ln -s /dev/disk/by-id/virtio-data /dev/vg/data")
    # And one on each machine that installs the packages.
    assert walk(installed) + 2 <= MOST_COMMANDS
    for guest in installed:
        assert guest.run("ibnbd key list --columns session -o csv") == "session\nweb1"
        assert "ibtrs-key" not in guest.run(f"cat {KEY}")
    prints = {guest.run("ibnbd key list --columns fingerprint -o csv") for guest in installed}
    assert len(prints) == 1 and prints != {"fingerprint\n-"}
    assert set(client.run("cat /sys/class/ibtrs-client/web1/paths/*/key_id").split()) == {"default"}
    # The service that waits for clients has ended with the token.
    server.wait_until("[ $(systemctl show -P ActiveState ibnbd-join) = inactive ]", 30)
    assert "has joined as host web1" in server.run("journalctl --boot --unit ibnbd-join")
    client.run("echo kept > /srv/data/file && sync")
    keep_state(installed, "server", "/etc/ibtrs/server.toml")
    services.keep(installed, "server", "/usr/lib/tmpfiles.d/vg.conf",
                  "d /dev/vg\nL /dev/vg/data - - - - /dev/disk/by-id/virtio-data\n")
    keep_state(installed, "client", "/etc/ibtrs/client.toml", "/etc/ibtrs/joined.toml", "/etc/fstab")
    client.run("umount /srv/data")
    installed.reboot("client")
    installed.reboot("server", [image])
    client = installed.client
    client.wait_until("grep -qx kept /srv/data/file", 240)
    assert set(client.run("cat /sys/class/ibtrs-client/web1/paths/*/key_id").split()) == {"default"}
    client.run("umount /srv/data")
