# SPDX-License-Identifier: GPL-2.0
"""Has the programs of `messages.py` in guests."""

from pathlib import Path

from . import messages


def push(guest) -> None:
    guest.push("/tmp/messages.py", Path(messages.__file__).read_text())


def bound(guest) -> None:
    """Waits until a program has bound a portal."""
    guest.wait_until("ls -l /proc/[0-9]*/fd 2> /dev/null | grep -q ibmsg-portal", 60)
