# SPDX-License-Identifier: GPL-2.0
"""The program of the hostile server's victim: goes through the table, a line for each case."""

import argparse
import socket

from . import report
from .lies import LIES, Lie
from .values import representatives
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
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="cases with this in their name")
    parser.add_argument("--all", action="store_true", help="not only some of each kind")
    chosen = parser.parse_args()
    names = [lie.name for lie in LIES if chosen.only in lie.name]
    wanted = set(names) if chosen.all else representatives(names)
    server = Server(ADDRESS)
    for number, lie in enumerate(LIES):
        if lie.name in wanted:
            report.run(lie.name, run, server, number, lie)


if __name__ == "__main__":
    main()
