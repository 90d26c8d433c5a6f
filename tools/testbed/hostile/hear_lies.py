# SPDX-License-Identifier: GPL-2.0
"""The client's program against the hostile server: runs the table, and prints a line for each case."""

import socket

from . import report
from .lies import LIES, Lie
from .values import chosen
from .victim import ADDRESS, Victim

CONTROL = 4000


class Server:
    """The line to the program of the server."""

    def __init__(self, address: str):
        self.socket = socket.create_connection((address, CONTROL), 60)
        self.socket.settimeout(180)
        self.file = self.socket.makefile("r")

    def tell(self, line: str) -> str:
        self.socket.sendall(line.encode() + b"\n")
        answer = self.file.readline().strip()
        assert answer and not answer.startswith("FAILED"), f"the server, asked to {line}: {answer or 'has ended'}"
        return answer


def run(server: Server, number: int, lie: Lie) -> None:
    port = int(server.tell(f"case {lie.name}").removeprefix("port "))
    victim = Victim(f"lie{number}", port, server.tell)
    try:
        lie.victim(victim)
    finally:
        victim.unmap()
        server.tell("end")


def main() -> None:
    wanted = chosen([lie.name for lie in LIES])
    server = Server(ADDRESS)
    for number, lie in enumerate(LIES):
        if lie.name in wanted:
            report.run(lie.name, run, server, number, lie)


if __name__ == "__main__":
    main()
