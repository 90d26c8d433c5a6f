# SPDX-License-Identifier: GPL-2.0
"""The program of the hostile server: plays the case, or the honest server, that the client's
program asks for."""

import socket
import sys
import time

from .fuzz import Tampered
from .lies import LIES
from .server import Server
from .verbs import Pause

# The port for the victim's program.
CONTROL = 4000
FIRST_PORT = 5000


class Stage:
    """The server of the present case."""

    def __init__(self, address: str):
        self.address, self.port = address, FIRST_PORT
        self.server: Server | None = None
        self.lie = None

    def case(self, name: str) -> str:
        self.lie = next(lie for lie in LIES if lie.name == name)
        return self._open(lambda port: Server(self.address, port, self.lie.behaviour()))

    def fuzz(self, seed: str) -> str:
        return self._open(lambda port: Tampered(self.address, port, seed))

    def _open(self, make) -> str:
        self.end()
        self.port += 1
        self.server = make(self.port)
        return f"port {self.port}"

    def order(self, number: str) -> str:
        failure = self.lie.orders[int(number)](self.server)
        return f"FAILED {failure}" if isinstance(failure, str) else "ok"

    def paths(self) -> str:
        count = self.server.paths
        return f"{count} path" + "s" * (count != 1)

    def wait(self, what: str, seconds: float = 30) -> str:
        """Serves until a read of the user has come."""
        deadline = time.monotonic() + seconds
        while not self.server.requests_that(lambda r: r.is_read and r.at_spot):
            if not self.server.step():
                time.sleep(0.01)
            if time.monotonic() > deadline:
                return f"FAILED no {what} has come"
        return "ok"

    def end(self) -> str:
        mistakes = []
        if self.server is not None:
            mistakes = self.server.mistakes
            self.server.close()
            self.server = None
        return f"FAILED mistakes of the case: {mistakes}" if mistakes else "ok"

    def obey(self, line: str) -> str:
        verb, _, rest = line.partition(" ")
        act = {"case": self.case, "fuzz": self.fuzz, "order": self.order, "wait": self.wait}.get(verb)
        if act:
            return act(rest)
        return {"paths": self.paths, "end": self.end}[verb]()


def lines(control: socket.socket, stage: Stage):
    """The victim's output; the server works meanwhile."""
    inbox, pause = b"", Pause()
    control.setblocking(False)
    while True:
        busy = stage.server.step() if stage.server else False
        try:
            data = control.recv(4096)
            if not data:
                return
            inbox += data
        except BlockingIOError:
            if busy:
                pause.reset()
            else:
                pause.take()
        while b"\n" in inbox:
            line, inbox = inbox.split(b"\n", 1)
            yield line.decode()


def main(address: str) -> None:
    listener = socket.create_server((address, CONTROL))
    print("ready", flush=True)
    control, _ = listener.accept()
    stage = Stage(address)
    for line in lines(control, stage):
        print(f"# {line}", flush=True)
        try:
            answer = stage.obey(line)
        except Exception as error:  # noqa: BLE001: the victim's program has to hear of it
            answer = f"FAILED {type(error).__name__}: {error}"
        control.setblocking(True)
        control.sendall(answer.encode() + b"\n")
        control.setblocking(False)
    stage.end()


if __name__ == "__main__":
    main(*sys.argv[1:])
