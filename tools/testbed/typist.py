# SPDX-License-Identifier: GPL-2.0
"""Somebody at a terminal: starts a program on a pseudo-terminal, types, and reads what appears there.

Each wait has a limit, and a program that is still there at the end is killed with all that it has started."""

import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import termios
import time
from pathlib import Path

ROWS, COLUMNS = 50, 200
# What makes a terminal move its cursor, change colours or set its title, and says nothing.
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07|[\x07\x0e\x0f\r]")


def _children() -> dict[int, list[int]]:
    """The processes of the machine, by that which has started them."""
    found: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        found.setdefault(int(words[1]), []).append(int(stat.parent.name))
    return found


def descendants(process: int, name: str) -> list[int]:
    """What a process has started, at whatever remove, of programs with that in their names."""
    children, found, left = _children(), [], [process]
    while left:
        own = children.get(left.pop(), [])
        left += own
        for one in own:
            try:
                if name in Path(f"/proc/{one}/comm").read_text():
                    found.append(one)
            except OSError:
                continue
    return found


class Typist:
    """A program on a terminal; to be used in a `with` statement."""

    def __init__(self, command: list[str], folder: Path, **environment: str):
        master, terminal = os.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        # Neither what an outer make has set, nor the size of another terminal.
        left_out = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "COLUMNS", "LINES")
        inherited = {name: value for name, value in os.environ.items() if name not in left_out}
        self.command = " ".join(command)
        # In a session of its own, whose terminal this is.
        self.process = subprocess.Popen(
            ["setsid", "--ctty", "--wait", *command], cwd=folder, stdin=terminal, stdout=terminal, stderr=terminal,
            env={**inherited, "TERM": "dumb", **environment})
        os.close(terminal)
        self._master, self._raw, self._seen = master, b"", 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
        os.close(self._master)

    @property
    def text(self) -> str:
        """All that has appeared so far."""
        return CONTROL.sub("", self._raw.decode(errors="replace"))

    def _read(self, seconds: float) -> bool:
        """Reads what comes within that time; whether there may be more."""
        ready, _, _ = select.select([self._master], [], [], max(seconds, 0))
        if not ready:
            return True
        try:
            data = os.read(self._master, 65536)
        except OSError:
            # Nobody has the terminal open any more.
            return False
        self._raw += data
        return bool(data)

    def wait_for(self, pattern: str, seconds: float) -> str:
        """Waits until that appears; returns all that has appeared since the last time."""
        deadline = time.monotonic() + seconds
        goes_on = True
        while True:
            text = self.text
            if found := re.compile(pattern, re.M).search(text, self._seen):
                start, self._seen = self._seen, found.end()
                return text[start:found.end()]
            left = deadline - time.monotonic()
            if left < 0 or not goes_on:
                why = f"not within {seconds:.0f} s" if goes_on else "it has ended"
                raise AssertionError(f"{self.command}: {pattern!r} does not appear, {why}:\n{text[self._seen:]}")
            goes_on = self._read(min(left, 0.5))

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def enter(self, line: str, seconds: float = 60) -> tuple[int, str]:
        """Has a shell carry out a line; returns its status and what it has printed."""
        # The line that the shell echoes has the dollar and not the number.
        self.type(f"{line}; echo \"[ended $?]\"\n")
        printed = self.wait_for(r"^.*\[ended (\d+)\]$", seconds)
        # Twice, if it was typed before the shell has read it.
        _, _, printed = printed.rpartition("[ended $?]\"\n")
        printed, _, status = printed.rpartition("[ended ")
        return int(status.rstrip("]")), printed

    def end(self, seconds: float) -> int:
        """Waits until the program ends; returns its status."""
        deadline = time.monotonic() + seconds
        # It could wait for somebody to read what it prints.
        while self._read(min(0.2, deadline - time.monotonic())) and time.monotonic() < deadline:
            pass
        try:
            return self.process.wait(max(deadline - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.command} does not end within {seconds:.0f} s:\n{self.text[-2000:]}") from None

    def kill(self) -> None:
        if self.process.poll() is None:
            for process in [self.process.pid, *descendants(self.process.pid, "")]:
                try:
                    os.kill(process, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            self.process.wait()
