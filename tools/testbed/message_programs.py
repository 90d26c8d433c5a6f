# SPDX-License-Identifier: GPL-2.0
"""Has the programs of `messages.py`, `message_gather.py` and `message_publish.py` in guests."""

from pathlib import Path

# Frames after which the link between the programs is lost.
LOSSY = 40


def load(guest, lossy: bool = False, parameters: str = "") -> None:
    """Loads the module again, with a link between programs of one machine that stays, or that is lost every few
    frames."""
    guest.run("[ ! -e /sys/module/ibmsg ] || busybox rmmod ibmsg")
    guest.run(f"modprobe ibmsg {f'lose_link={LOSSY}' if lossy else ''} {parameters}")
    push(guest)


def push(guest) -> None:
    for name in ("messages.py", "message_gather.py", "message_publish.py"):
        guest.push(f"/tmp/{name}", (Path(__file__).parent / name).read_text())


def bound(guest) -> None:
    """Waits until a program has bound a portal."""
    guest.wait_until("ls -l /proc/[0-9]*/fd 2> /dev/null | grep -q ibmsg-portal", 60)
