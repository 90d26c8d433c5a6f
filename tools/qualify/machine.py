# SPDX-License-Identifier: GPL-2.0
"""A machine that is reached by ssh, or by another command that takes a host and a command."""

import shlex
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

DEFAULT = "ssh -o BatchMode=yes"
# One connection for all commands, which notices within half a minute that its peer is gone.
OPTIONS = ("-o ControlMaster=auto -o ControlPath={folder}/%C -o ControlPersist=60 -o ConnectTimeout=15 "
           "-o ServerAliveInterval=5 -o ServerAliveCountMax=6")
# The status of ssh itself when it has no connection.
NO_CONNECTION = 255


class Failed(Exception):
    """A command ended with a status other than 0, or not in time."""


class Unreachable(Failed):
    """The machine cannot be reached."""


@dataclass(frozen=True)
class Answer:
    text: str
    errors: str
    status: int

    @property
    def ok(self) -> bool:
        return self.status == 0


def transport(template: str, folder: Path) -> list[str]:
    """The words in front of the host; ssh shares a connection by a socket in `folder`."""
    words = shlex.split(template)
    if Path(words[0]).name == "ssh":
        words += shlex.split(OPTIONS.format(folder=folder))
    return words


def as_root(command: str) -> str:
    """A command for a login shell of any user that may use sudo. sbin is not in every user's PATH, and
    sudo drops SSH_CONNECTION."""
    inner = f"export PATH=$PATH:/usr/sbin:/sbin LC_ALL=C\n{command}"
    return ('[ "$(id -u)" = 0 ] && s= || s="sudo -n"; '
            f'exec $s env SSH_CONNECTION="$SSH_CONNECTION" sh -c {shlex.quote(inner)}')


class Machine:
    """`name` is "server" or "client"; `host` is what ssh is given."""

    def __init__(self, name: str, host: str, words: list[str]):
        self.name, self.host, self.words = name, host, words
        self.process: subprocess.Popen | None = None

    def run(self, command: str, stdin: str = "", timeout: float = 120, check: bool = True, shown: str = "") -> Answer:
        """Runs a shell command as root. Ctrl-C on this terminal does not reach it: what it began is ended in
        good order by the record of changes. `shown` is the part of the command that an error names, if not all of it."""
        shown = short(shown or command)
        with subprocess.Popen([*self.words, self.host, as_root(command)], text=True, errors="replace",
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              start_new_session=True) as self.process:
            try:
                text, errors = self.process.communicate(stdin, timeout)
            except subprocess.TimeoutExpired:
                self.process.kill()
                raise Failed(f"{self.name}: not done within {timeout:.0f} s: {shown}") from None
            except BaseException:
                self.process.kill()
                raise
        answer = Answer(text.rstrip("\n"), errors.strip(), self.process.returncode)
        if answer.status == NO_CONNECTION:
            raise Unreachable(f"{self.name}: `{shlex.join(self.words[:1])} {self.host}` does not connect: "
                              f"{answer.errors or 'no reason given'}")
        if check and not answer.ok:
            said = answer.errors or answer.text or f"status {answer.status}"
            raise Failed(f"{self.name}: {said}\n  command: {shown}")
        return answer

    def disconnect(self) -> None:
        """Ends the connection that commands share."""
        if Path(self.words[0]).name == "ssh":
            subprocess.run([*self.words, "-O", "exit", self.host], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL, start_new_session=True, check=False)

    def wait(self, command: str, timeout: float, what: str, pause: float = 0.5) -> str:
        """Waits until a command succeeds, and returns what it printed."""
        deadline = time.monotonic() + timeout
        while True:
            answer = self.run(command, check=False)
            if answer.ok:
                return answer.text
            if time.monotonic() > deadline:
                raise Failed(f"{self.name}: waited {timeout:.0f} s in vain: {what}")
            time.sleep(pause)


def short(command: str) -> str:
    """A command on one line, for messages."""
    line = " ".join(command.split())
    return line if len(line) <= 300 else f"{line[:300]} ..."
