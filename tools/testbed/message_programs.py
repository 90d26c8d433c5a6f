# SPDX-License-Identifier: GPL-2.0
"""Has the programs of messages in guests: `messages.py`, and others that use it."""

from pathlib import Path

# Frames after which the link between the programs is lost.
LOSSY = 40
PROGRAMS = ("messages", "message_bodies", "message_fuzz", "message_gather", "message_memory", "message_publish")


def load(guest, lossy: bool = False, parameters: str = "") -> None:
    """Loads the module again, with a link between programs of one machine that stays, or that is lost every few
    frames."""
    guest.run("[ ! -e /sys/module/ibmsg ] || busybox rmmod ibmsg")
    guest.run(f"modprobe ibmsg {f'lose_link={LOSSY}' if lossy else ''} {parameters}")
    push(guest)


def push(guest) -> None:
    for name in PROGRAMS:
        guest.push(f"/tmp/{name}.py", (Path(__file__).parent / f"{name}.py").read_text())


def load_both(pair) -> None:
    """Loads the module on two machines, for message connections between them."""
    for guest in pair:
        guest.run("modprobe ibmsg")
        push(guest)


def command(program: str, name: str, arguments: tuple) -> str:
    return f"python3 /tmp/{program}.py {' '.join(map(str, (name, *arguments)))} 2>&1"


def case(guest, name: str, *arguments, program: str = "messages", timeout: float = 210) -> str:
    """Runs a case of a program to its end."""
    return guest.run(f"timeout -s KILL {timeout - 10} {command(program, name, arguments)}", timeout=timeout)


def start(guest, name: str, *arguments, program: str = "messages"):
    """Starts a case of a program."""
    return guest.start(f"exec {command(program, name, arguments)}")


def finish(*programs, timeout: float = 300) -> str:
    """Waits until programs that were started have ended well; what they have said."""
    for program in programs:
        # What went wrong may be in the text of another one.
        assert program.wait(timeout, check=False).ok, "\n".join(program.text for program in programs)
    return "".join(program.text for program in programs)


def bound(guest) -> None:
    """Waits until a program has bound a portal.  On a busy machine, the first one of a guest takes long to start."""
    guest.wait_until("ls -l /proc/[0-9]*/fd 2> /dev/null | grep -q ibmsg-portal", 240)
