# SPDX-License-Identifier: GPL-2.0
"""ssh from the host into guests of lab.Reachable, with keys that are made for them. Those that have a Debian of their own
run its server as it is packaged."""

import subprocess
from pathlib import Path

from .lab import Reachable, wait_for

# Commands find `ibnbd` where testbed.tool puts it. There is no PAM, and keys are where other users might read them.
SERVER = """Port 22
HostKey /tmp/ssh/host
AuthorizedKeysFile /tmp/ssh/authorized
PidFile /tmp/ssh/pid
UsePAM no
StrictModes no
SetEnv PATH=/tmp:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LD_LIBRARY_PATH=/run/testbed/lib HOME=/tmp
"""
CLIENT = """Host *
	User root
	IdentityFile {folder}/key
	StrictHostKeyChecking no
	UserKnownHostsFile /dev/null
	LogLevel ERROR
	HostName 127.0.0.1
"""


def serve(pair: Reachable) -> str:
    """Starts a server in each guest that has none; returns a command to reach them by their names."""
    folder = pair.folder / "ssh"
    if not folder.exists():
        folder.mkdir()
        for name in ("key", "host"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
        ports = "".join(f"Host {name}\n\tPort {port}\n" for name, port in pair.ports.items())
        (folder / "config").write_text(ports + CLIENT.format(folder=folder))
    command = f"ssh -F {folder}/config -o BatchMode=yes"
    for name, guest in pair.guests.items():
        if pair.systemd:
            guest.run("mkdir -p -m 700 /root/.ssh && systemctl start ssh")
            guest.push("/root/.ssh/authorized_keys", (folder / "key.pub").read_text(), 0o600)
        elif not guest.ok("kill -0 $(cat /tmp/ssh/pid)"):
            _start(guest, folder)
        # The first connection of an emulated guest takes its time.
        wait_for(lambda name=name: subprocess.run([*command.split(), name, "true"], check=False,
                                                  stderr=subprocess.DEVNULL).returncode == 0, 120, f"ssh to {name}")
    return command


def _start(guest, folder: Path) -> None:
    guest.push("/tmp/ssh/host", (folder / "host").read_text(), 0o600)
    guest.push("/tmp/ssh/authorized", (folder / "key.pub").read_text(), 0o600)
    guest.push("/tmp/ssh/config", SERVER)
    guest.run("mkdir -p -m 755 /run/sshd && setsid /usr/sbin/sshd -f /tmp/ssh/config")
