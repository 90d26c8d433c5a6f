# SPDX-License-Identifier: GPL-2.0
"""Runs in a guest: gives the kernel a name by which SMC finds out that both machines may use SMC-R.

Version 1 of SMC-R takes RoCE v1 only, which soft-RoCE does not have. Version 2 wants such a name (UEID) on both sides.
This is the generic netlink command that smc-tools has for it."""

import socket
import struct

GENERIC = 16
CONTROL, GET_FAMILY, FAMILY_ID, FAMILY_NAME = 0x10, 3, 1, 2
ADD_UEID, UEID = 10, 1
REQUEST, ACKNOWLEDGE = 1, 4
ERROR = 2
# Of 32 characters, and a zero behind them.
NAME = b"IBTRS.BENCH".ljust(32) + b"\0"


def attribute(kind: int, value: bytes) -> bytes:
    data = struct.pack("=HH", 4 + len(value), kind) + value
    return data + bytes(-len(data) % 4)


def ask(link: socket.socket, family: int, command: int, body: bytes) -> bytes:
    """Returns the first answer, which is an error or what was asked for."""
    body = struct.pack("=BBH", command, 1, 0) + body
    link.send(struct.pack("=IHHII", 16 + len(body), family, REQUEST | ACKNOWLEDGE, 1, 0) + body)
    answer = link.recv(65536)
    kind, = struct.unpack_from("=H", answer, 4)
    if kind == ERROR and (number := struct.unpack_from("=i", answer, 16)[0]):
        raise OSError(-number, f"netlink command {command}")
    return answer


def family_of(link: socket.socket, name: bytes) -> int:
    answer = ask(link, CONTROL, GET_FAMILY, attribute(FAMILY_NAME, name + b"\0"))
    # The acknowledgement.
    link.recv(65536)
    at, end = 20, struct.unpack_from("=I", answer)[0]
    while at < end:
        length, kind = struct.unpack_from("=HH", answer, at)
        if kind == FAMILY_ID:
            return struct.unpack_from("=H", answer, at + 4)[0]
        at += length + -length % 4
    raise LookupError(name)


if __name__ == "__main__":
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, GENERIC) as opened:
        opened.bind((0, 0))
        ask(opened, family_of(opened, b"SMC_GEN_NETLINK"), ADD_UEID, attribute(UEID, NAME))
