# SPDX-License-Identifier: GPL-2.0
"""Joins the user's terminal to a shell in a guest.

`python3 -m testbed.terminal` joins it to the shell of the server that `make shell` offers."""

import os
import select
import shutil
import socket
import sys
import termios
import tty
from contextlib import contextmanager
from pathlib import Path

from . import paths
from .guest import Guest

SHELL = (
    "exec </dev/hvc0 >/dev/hvc0 2>&1; stty sane rows {rows} cols {columns}; export HISTFILE= TERM={term}; "
    "[ ! -e /tmp/guide/bashrc ] || . /tmp/guide/bashrc; {again} PS1='{name}# ' bash --rcfile /tmp/guide/rc -i; {done}"
)
RC = "[ ! -e /tmp/guide/bashrc ] || . /tmp/guide/bashrc\nPS1='{name}# '\n"
# A link to the socket of the server's terminal.
OFFERED = paths.cache() / "shell-server"
# Ctrl-] leaves a terminal that is not the program's own.
LEAVE = b"\x1d"


def _start(guest: Guest, forever: bool = False):
    size = shutil.get_terminal_size()
    guest.run("mkdir -p /tmp/guide")
    guest.push("/tmp/guide/rc", RC.format(name=guest.name))
    again, done = ("while :; do", "done") if forever else ("", ":")
    return guest.channel.start(SHELL.format(rows=size.lines, columns=size.columns, name=guest.name, again=again, done=done,
                                            term=os.environ.get("TERM", "vt220")))


def _connect(path) -> socket.socket:
    line = socket.socket(socket.AF_UNIX)
    line.connect(str(path))
    return line


@contextmanager
def _raw():
    """The terminal passes each key on, if it is one."""
    before = termios.tcgetattr(0) if os.isatty(0) else None
    try:
        if before:
            tty.setraw(0)
        yield
    finally:
        if before:
            termios.tcsetattr(0, termios.TCSADRAIN, before)


def _relay(line: socket.socket, goes_on, listening: bool) -> None:
    # Text that is typed before the shell listens would be lost: wait for its prompt.
    sources = [line, 0] if listening else [line]
    while goes_on():
        ready, _, _ = select.select(sources, [], [], 0.2)
        if 0 in ready:
            data = os.read(0, 4096)
            if LEAVE in data and listening:
                return
            if not data:
                # No more input: say so as a terminal does.
                data = b"\x04"
                sources.remove(0)
            line.sendall(data)
        if line in ready:
            data = line.recv(65536)
            if not data:
                return
            os.write(1, data)
            if 0 not in sources and not listening:
                listening = True
                sources.append(0)


def shell(guest: Guest) -> None:
    """Returns when the user leaves the shell."""
    line = _connect(guest.folder / "term")
    sys.stdout.flush()
    job = _start(guest)
    try:
        with _raw():
            _relay(line, lambda: job.running, listening=False)
    finally:
        line.close()
    print()


@contextmanager
def offered(guest: Guest):
    """A shell in a guest for another terminal, again and again."""
    _start(guest, forever=True)
    OFFERED.unlink(missing_ok=True)
    OFFERED.symlink_to((guest.folder / "term").resolve())
    try:
        yield
    finally:
        OFFERED.unlink(missing_ok=True)


def join_offered() -> int:
    try:
        # The way to the socket itself may be too long for it.
        line = _connect(OFFERED)
    except (FileNotFoundError, ConnectionRefusedError):
        # Of one that was killed, the link may be left.
        print("there is no server: run `make shell` in another terminal, and wait until it says that you are on the client",
              file=sys.stderr)
        return 1
    print("==> You are on the server. Ctrl-] leaves it.", flush=True)
    # Its prompt may have gone by.
    line.sendall(b"\n")
    with _raw():
        _relay(line, lambda: True, listening=True)
    print()
    return 0


if __name__ == "__main__":
    sys.exit(join_offered())
