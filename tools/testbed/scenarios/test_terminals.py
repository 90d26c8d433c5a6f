# SPDX-License-Identifier: GPL-2.0
"""`make shell` and `make shell-server`, typed at two terminals: what a new user tries first."""

import re

import pytest

from testbed.guest import wait_for
from testbed.paths import TOP
from testbed.typist import Typist, descendants

# With the modules and the command, if these are not built yet, and two emulated guests.
UP = 480
# For a command in a guest while all processors are busy.
SOON = 90
TAB, CTRL_U, CTRL_BRACKET = "\t", "\x15", "\x1d"
# What may stand on the terminal until the shell is there: steps, their progress, and commands typed on the machines.
LINES = re.compile(r"==> \S.*|    \S.*| *(server|client)# \S.*|client# |")


@pytest.fixture
def kernel(unchecked) -> str:
    if unchecked not in ("fast", "stock"):
        pytest.skip(f"make shell has no kernel {unchecked}")
    return unchecked


def make(target: str, *words: str) -> Typist:
    return Typist(["make", "--no-print-directory", target, *words], TOP)


def prompt(typist: Typist, name: str, seconds: float) -> str:
    return typist.wait_for(rf"^{name}# ", seconds)


def completes(typist: Typist, start: str, end: str) -> None:
    """The shell goes on with a word by itself."""
    typist.type(start + TAB)
    typist.wait_for(re.escape(start + end), SOON)
    typist.type(CTRL_U)


def has_the_command(typist: Typist, name: str) -> None:
    """Also its manual pages and completions."""
    status, text = typist.enter("ibnbd --version", SOON)
    assert status == 0 and text.startswith("ibnbd "), text
    # Not every machine that lends the guests its files has man.
    status, text = typist.enter("man -w ibnbd || ls ${MANPATH%%:*}/man1/ibnbd.1", SOON)
    assert status == 0 and "/man1/ibnbd.1" in text, text
    status, text = typist.enter("ls ${MANPATH%%:*}/man1/ibnbd-map.1", SOON)
    assert status == 0, text
    # The server's disk is in its memory, and has no identity, of which clients are warned.
    status, text = typist.enter("ibnbd status", SOON)
    assert (status, text.partition(" (")[0].partition(", ")[0]) in [
        (0, "OK: 0 of 0 disks open"), (1, "WARNING: ibnbd0 has no identity")], text
    prompt(typist, name, SOON)
    completes(typist, "ibnbd unm", "ap")


def test_two_terminals_have_a_client_and_its_server(kernel):
    with make("shell", f"KERNEL={kernel}") as client:
        said = client.wait_for("^==> You are on the client; .*$", UP)
        prompt(client, "client", SOON)
        # Progress, and nothing else.
        noise = [line for line in said.splitlines() if not LINES.fullmatch(line)]
        assert noise == [], said
        for line in (f"==> Building the modules for the {kernel} kernel (log: ",
                     f"    Building the modules for the {kernel} kernel: done in ",
                     "==> Two shells: one on the client, here; one on the server by `make shell-server`",
                     "==> Building the command ibnbd (log: ", "    Building the command ibnbd: done in ",
                     "==> Booting a storage server and a client", "client# ibnbd join ibtrs-token-1/client/",
                     "client# ibnbd map disk1", "==> /dev/ibnbd0 is mapped after ", "==> You are on the client; "):
            assert line in said, (line, said)
        guests = descendants(client.process.pid, "qemu")
        assert len(guests) == 2
        has_the_command(client, "client")
        # Names that only this machine knows.
        completes(client, "ibnbd show ibn", "bd0")
        status, text = client.enter("ibnbd list", SOON)
        assert status == 0 and re.search(r"^ibnbd0 .* disk1\b", text, re.M), text
        status, text = client.enter("dd if=/dev/zero of=/dev/ibnbd0 bs=64k count=4 oflag=direct status=none", SOON)
        assert (status, text) == (0, "")
        with make("shell-server") as server:
            assert "==> You are on the server. Ctrl-] leaves it." in prompt(server, "server", SOON)
            has_the_command(server, "server")
            status, text = server.enter("ibnbd export list", SOON)
            assert status == 0 and re.search(r"^disk1 +/dev/nullb0 +rw ", text, re.M), text
            status, text = server.enter("ibnbd clients", SOON)
            assert status == 0 and "client" in text, text
            server.type(CTRL_BRACKET)
            assert server.end(SOON) == 0
        # It is still there for the next one, also after exit.
        with make("shell-server") as server:
            prompt(server, "server", SOON)
            server.type("exit\n")
            server.wait_for(r"^exit", SOON)
            prompt(server, "server", SOON)
            client.type("exit\n")
            assert client.end(SOON) == 0
            assert server.end(SOON) == 0
        wait_for(lambda: not any(map(is_alive, guests)), SOON, "both guests end")
    with make("shell-server") as server:
        server.wait_for("there is no server: run `make shell` in another terminal", SOON)
        assert server.end(SOON) == 2


def is_alive(process: int) -> bool:
    try:
        with open(f"/proc/{process}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
