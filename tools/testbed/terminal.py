# SPDX-License-Identifier: GPL-2.0
"""Joins the user's terminal to a shell in a guest."""

import os
import select
import shutil
import socket
import sys
import termios
import tty

from .guest import Guest

SHELL = (
    "exec </dev/hvc0 >/dev/hvc0 2>&1; stty sane rows {rows} cols {columns}; "
    "PS1='{name}# ' HISTFILE= exec bash --norc -i"
)


def _relay(line: socket.socket, job) -> None:
    # Text that is typed before the shell listens would be lost: wait for its prompt.
    sources = [line]
    listening = False
    while job.running:
        ready, _, _ = select.select(sources, [], [], 0.2)
        if 0 in ready:
            data = os.read(0, 4096)
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
            if not listening:
                listening = True
                sources.append(0)


def shell(guest: Guest) -> None:
    """Returns when the user leaves the shell."""
    size = shutil.get_terminal_size()
    line = socket.socket(socket.AF_UNIX)
    line.connect(str(guest.folder / "term"))
    before = termios.tcgetattr(0) if os.isatty(0) else None
    sys.stdout.flush()
    job = guest.channel.start(SHELL.format(rows=size.lines, columns=size.columns, name=guest.name))
    try:
        if before:
            tty.setraw(0)
        _relay(line, job)
    finally:
        if before:
            termios.tcsetattr(0, termios.TCSADRAIN, before)
        line.close()
    print()
