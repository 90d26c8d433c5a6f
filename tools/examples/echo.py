#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Messages in Python, with nothing but open, read, write and ioctl.

    echo.py serve PORTAL                 sends back what arrives, one channel after the other
    echo.py inherited                    the same for the channel that is its standard input: ibmsg serve PORTAL echo.py inherited
    echo.py ask SESSION PORTAL TEXT...   sends requests, and prints the answers"""

import contextlib
import errno
import fcntl
import os
import struct
import sys

# ibmsg.h
BIND, CONNECT, ACCEPT = 0xB900, 0xB901, 0xB902
MSG, REQUEST, REPLY, EVENT = 1, 2, 3, 5
HEADER = struct.Struct("=BBHIQQiI")  # struct ibmsg_msg
MAX = HEADER.size + 65536


def ioctl(fd: int, number: int, fields: bytes) -> int:
    """Each structure begins with its size."""
    return fcntl.ioctl(fd, number, bytearray(struct.pack("=I", 4 + len(fields)) + fields))


def messages(channel: int):
    """Each message until the channel ends: its kind, id, tag, status and content."""
    while data := os.read(channel, MAX):
        at = 0
        while at < len(data):
            kind, _, _, length, id, tag, status, _ = HEADER.unpack_from(data, at)
            at += HEADER.size
            yield kind, id, tag, status, data[at:at + length]
            at = (at + length + 7) & ~7


def write(channel: int, kind: int, body: bytes, id: int = 0, tag: int = 0) -> None:
    os.write(channel, HEADER.pack(kind, 0, 0, len(body), id, tag, 0, 0) + body)


def answer(channel: int) -> None:
    # The other program may go before it has all answers.
    with contextlib.suppress(BrokenPipeError):
        for kind, id, tag, _, body in messages(channel):
            if kind == REQUEST:
                write(channel, REPLY, body, id=id)
            elif kind == MSG:
                write(channel, MSG, body, tag=tag)


def serve(device: int, portal: str) -> None:
    portal_fd = ioctl(device, BIND, struct.pack("=3I32x64s", 0, 0, 0, portal.encode()))
    while True:
        offer = HEADER.unpack_from(os.read(portal_fd, 4096))[4]
        try:
            channel = ioctl(portal_fd, ACCEPT, struct.pack("=IQII256x", 0, offer, 0, 0))
        except FileNotFoundError:
            continue  # The program does not wait any more.
        answer(channel)
        os.close(channel)


def ask(device: int, session: str, portal: str, texts: list[str]) -> None:
    fields = struct.pack("=IIiII32x64s64s256x", 0, 10_000, 0, 0, 0, session.encode(), portal.encode())
    channel = ioctl(device, CONNECT, fields)
    # All of them are on their way before the first answer is read.
    for number, text in enumerate(texts):
        write(channel, REQUEST, text.encode(), tag=number)
    answers = {}
    for kind, _, tag, status, body in messages(channel):
        if kind == REPLY:
            answers[tag] = body.decode() if status == 0 else os.strerror(status)
        if kind == EVENT or len(answers) == len(texts):
            break
    for number, text in enumerate(texts):
        print(f"{text}: {answers.get(number, os.strerror(errno.EPIPE))}")


def main(words: list[str]) -> int:
    match words:
        case ["serve", portal]:
            serve(os.open("/dev/ibmsg", os.O_RDWR), portal)
        case ["inherited"]:
            answer(0)
        case ["ask", session, portal, *texts] if texts:
            ask(os.open("/dev/ibmsg", os.O_RDWR), session, portal, texts)
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
