# SPDX-License-Identifier: GPL-2.0
"""echo.py ADDRESS PORT: accepts one connection, sends each message back, and ends when the peer
disconnects."""

import sys

import pyverbs.cm_enums as ce

from .verbs import DEFAULT_WAIT, Closed, Connection, Home, Listener


def accept(listener: Listener, home: Home) -> Connection:
    """Accepts the next connection."""
    while True:
        event = listener.event(home, DEFAULT_WAIT)
        if event is None:
            raise TimeoutError("nobody connects")
        kind, _, connection = event
        if kind == ce.RDMA_CM_EVENT_CONNECT_REQUEST and connection is not None:
            connection.accept(b"")
            return connection


def main(address: str, port: int) -> None:
    listener = Listener(address, port)
    home = Home(listener.device, 4096)
    print("ready", flush=True)
    connection = accept(listener, home)
    # The events of the connection come with those of the listener.
    connection.channel = listener.channel
    try:
        while True:
            message = connection.next()
            connection.pair.wait_sent(connection.pair.send(message.data))
            print(f"sent back {message.data!r}", flush=True)
    except Closed:
        print("disconnected", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
