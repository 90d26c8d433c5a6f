# SPDX-License-Identifier: GPL-2.0
"""Runs in a guest beside messages.py: anything into any of the files of /dev/ibmsg.

    python3 message_fuzz.py fuzz SESSION NAME SECONDS SEED

Three processes share a portal of that name and its channels: calls that are mostly right, with bits that are changed,
structures and entries of rings of random bytes, reads and writes of all kinds.  It prints how often each ioctl was tried
and was not refused, by itself and as a command of io_uring."""

import collections
import contextlib
import ctypes
import fcntl
import json
import mmap
import os
import random
import signal
import struct
import sys
import time

import messages
from messages import (ACCEPT, BIND, CALL, CONNECT, F_MORE, F_NOWAIT, F_RECEIPT, FLUSH, GET, INFO, LOG, MAP, MAX, MSG, NONBLOCK, PUT, REPLY,
                      REQUEST, SHUTDOWN, SUBSCRIBE, TUNE, UNMAP, UNSUBSCRIBE, Ring, sized)

NAMES = {BIND: "BIND", CONNECT: "CONNECT", ACCEPT: "ACCEPT", INFO: "INFO", SHUTDOWN: "SHUTDOWN", CALL: "CALL", FLUSH: "FLUSH",
         TUNE: "TUNE", MAP: "MAP", UNMAP: "UNMAP", PUT: "PUT", GET: "GET", SUBSCRIBE: "SUBSCRIBE", UNSUBSCRIBE: "UNSUBSCRIBE",
         LOG: "LOG"}
# Those that there are, the ones beside them, and others'.
NUMBERS = (*NAMES, GET + 1, LOG + 1, 0x5401, 0xB9FF)
COMMANDS = (CALL, PUT, GET)
SIZES = (4, 16, 24, 40, 48, 72, 112, 248, 280, 440)
FDS = 100
ROOM = 1 << 20
PROCESSES = 3


class Fuzzer:
    def __init__(self, session: str, name: str, portal: int, seed: str):
        self.session, self.name, self.portal = session, name, portal
        self.chance = random.Random(seed)
        self.device = messages.device()
        self.channels, self.handles = [], [1 << 16]
        self.tried, self.done = collections.Counter(), collections.Counter()
        self.room = mmap.mmap(-1, ROOM)
        self.where = ctypes.addressof(ctypes.c_char.from_buffer(self.room))
        self.ring = Ring()
        self.keys = {}

    # --- what calls take ---

    def number(self) -> int:
        return self.chance.choice((0, 1, 4096, 65536, ROOM, (1 << 32) - 1, (1 << 64) - 1, self.chance.getrandbits(64),
                                   self.chance.randrange(ROOM)))

    def address(self) -> int:
        return self.chance.choice((self.where, self.where, self.where + self.chance.randrange(ROOM), self.number()))

    def handle(self) -> int:
        return self.chance.choice((*self.handles[-4:], (1 << 16) + self.chance.randrange(4), self.number()))

    def any_fd(self) -> int:
        return self.chance.choice((self.device, self.portal, *self.channels))

    def channel(self) -> int:
        return self.chance.choice(self.channels or [self.portal])

    def flags(self, *likely: int) -> int:
        return self.chance.choice((*likely, *likely, *likely, 1 << self.chance.randrange(32)))

    def arguments(self, number: int) -> bytearray:
        """Those that a program might give."""
        pick = self.chance.choice
        match number:
            case messages.BIND:
                return sized(struct.pack("=3I32s64s", NONBLOCK, 0, 0, messages.opts(), b"fuzz-%d" % self.chance.randrange(1 << 20)))
            case messages.CONNECT:
                data = self.chance.randbytes(self.chance.randrange(257))
                return messages.connect_args(self.name, flags=NONBLOCK, data=data, session=self.session)
            case messages.ACCEPT:
                return sized(struct.pack("=IQII256s", self.flags(NONBLOCK, 3), self.chance.randrange(1 << 20), pick((0, 5)), 0, b""))
            case messages.INFO:
                return sized(bytes(244))
            case messages.CALL:
                return messages.call_args(self.where, self.where + 70_000, pick((0, 9, 5000, MAX)), pick((0, 9, MAX)),
                                          timeout=pick((1, 50)), flags=pick((0, F_NOWAIT)))
            case messages.TUNE:
                return sized(struct.pack("=3IQ", pick((0, 256, 4096)), pick((0, 100, 50_000)), pick((0, 10, 1000)), 0))
            case messages.MAP:
                offset = pick((0, self.where % 4096))
                return sized(struct.pack("=I4Q", self.flags(1, 2, 3), self.where, pick((4096, 65536, ROOM)), offset, 0))
            case messages.UNMAP:
                return sized(struct.pack("=IQ", self.flags(F_NOWAIT), self.handle()))
            case messages.PUT | messages.GET:
                return sized(struct.pack("=I4Q2I", self.flags(0, F_NOWAIT), self.handle(), pick((0, self.number())), self.address(),
                                         pick((1, 4096, 65536, self.number())), pick((1, 20, 1000)), 0))
            case messages.SUBSCRIBE:
                return sized(struct.pack("=IQIIQQ", self.flags(0, 2), self.chance.randrange(4), pick((0, 1, 2)), 0, 0, 0))
            case messages.UNSUBSCRIBE:
                return sized(struct.pack("=IQ", self.flags(0, 1), self.chance.randrange(4)))
            case messages.LOG:
                return sized(struct.pack("=IQIIQ4Q2I", self.flags(0, 1, 2), self.chance.randrange(4), pick((1, 8, 256)),
                                         self.chance.randrange(3), pick((0, 4096, 1 << 20)), 0, 0, 0, 0, 0, 0))
        return sized(self.chance.randbytes(self.chance.randrange(64)))

    def spoiled(self, data: bytearray) -> bytearray:
        """One in four has bits that are changed, or another length."""
        if self.chance.randrange(4):
            return data
        for _ in range(self.chance.randrange(3)):
            data[self.chance.randrange(len(data))] ^= 1 << self.chance.randrange(8)
        if not self.chance.randrange(4):
            data[:4] = struct.pack("=I", self.chance.choice(SIZES))
        return data

    # --- the steps ---

    def ioctl(self, fd: int, number: int, argument) -> int:
        name = NAMES.get(number, "another")
        self.tried[name] += 1
        result = fcntl.ioctl(fd, number, argument)
        self.done[name] += 1
        if number in (BIND, CONNECT, ACCEPT) and result > 2:
            if number == BIND or len(self.channels) > FDS:
                os.close(result)
            else:
                self.channels.append(result)
        return result

    def likely_call(self) -> None:
        number = self.chance.choice(tuple(NAMES))
        where = {BIND: self.device, CONNECT: self.device, ACCEPT: self.portal, LOG: self.portal}.get(number) or self.channel()
        if not self.chance.randrange(16):
            where = self.any_fd()
        # Most channels live for a while.
        if number == SHUTDOWN and self.chance.randrange(8):
            return
        data = self.spoiled(self.arguments(number))
        self.ioctl(where, number, data)
        if number == MAP:
            self.handles.append(*struct.unpack_from("=Q", data, 32))

    def random_call(self) -> None:
        size = self.chance.choice((*SIZES, 4 + self.chance.randrange(600)))
        number = self.chance.choice(NUMBERS)
        argument = bytearray(struct.pack("=I", size) + self.chance.randbytes(size - 4))
        if number != SHUTDOWN:
            self.ioctl(self.any_fd(), number, self.chance.choice((argument, argument, 0, 1, 4095, 1 << 30)))

    def connect(self) -> None:
        self.ioctl(self.device, CONNECT, self.arguments(CONNECT))

    def accept(self) -> None:
        for offer in messages.read(self.portal):
            self.ioctl(self.portal, ACCEPT, sized(struct.pack("=IQII256s", NONBLOCK, offer.id, 0, 0, b"")))

    def write(self) -> None:
        body = bytes(self.chance.choice((0, 1, 8, 100, 5000, MAX)))
        kind = self.chance.choice((MSG, MSG, REQUEST, REPLY, self.chance.randrange(256)))
        flags = self.chance.choice((0, F_RECEIPT, F_NOWAIT, 3, F_MORE, F_MORE | F_NOWAIT, self.chance.randrange(256)))
        header = messages.head(kind=kind, length=self.chance.choice((len(body),) * 8 + (0, 9, (1 << 32) - 1)), flags=flags,
                               id=self.chance.choice((0, 1 << 16, 2 << 16, self.chance.randrange(1 << 20))),
                               tag=self.chance.choice((0, 1, self.chance.getrandbits(64))), timeout=self.chance.choice((0, 1, 100)))
        data = header + body
        cut = self.chance.randrange(len(data) + 1)
        if self.chance.randrange(2):
            os.write(self.channel(), data)
        else:
            os.writev(self.channel(), self.chance.choice(([data[:cut], data[cut:]], [b"", data], [data[:31], data[31:]])))

    def write_anything(self) -> None:
        os.write(self.any_fd(), self.chance.randbytes(self.chance.randrange(100)))

    def publish(self) -> None:
        body = bytes(self.chance.choice((0, 8, 5000)))
        os.write(self.portal, messages.head(length=len(body), tag=self.chance.randrange(4), flags=self.chance.choice((0, F_NOWAIT))) + body)

    def read(self) -> None:
        fd = self.any_fd()
        if self.chance.randrange(4):
            data = os.read(fd, self.chance.choice((0, 31, 32, 100, 1 << 17)))
        else:
            buffers = [bytearray(self.chance.choice((0, 1, 31, 4096, 1 << 17))) for _ in range(3)]
            data = b"".join(buffers)[:os.readv(fd, buffers)]
        # The device tells what has happened, as text.
        for message in messages.split(data) if fd != self.device else ():
            if message.kind == REQUEST and self.chance.randrange(2):
                messages.write(fd, b"answer", kind=REPLY, id=message.id)

    def command(self, entry: bytes) -> None:
        """Submits an entry of the ring; what has come is taken, and a command that waits is left to itself."""
        ring = self.ring
        tail = ring.word(ring.sq[1])
        at = tail & ring.word(ring.sq[2])
        ring.entries[64 * at:64 * at + 64] = entry
        ring.words[ring.sq[6] // 4 + at] = at
        ring.words[ring.sq[1] // 4] = (tail + 1) & 0xFFFFFFFF
        ring.call(ring.ENTER, ring.fd, 1, 0, 0, 0, 0)
        while not ring.is_empty():
            key, result, _, _ = ring.wait()
            self.done["SQE " + self.keys.pop(key, "another")] += result >= 0

    def likely_command(self) -> None:
        number, key = self.chance.choice(COMMANDS), self.chance.getrandbits(63)
        # The structure of a CALL stays where it is: one of 64 places, behind what is sent and received.
        place = ROOM - 64 * (1 + self.chance.randrange(64))
        data = self.spoiled(self.arguments(number))
        self.room[place:place + len(data)] = bytes(data)
        self.tried["SQE " + NAMES[number]] += 1
        self.keys[key] = NAMES[number]
        self.command(struct.pack("=BBHiIIQIIQHHI16x", Ring.URING_CMD, self.chance.choice((0, Ring.ASYNC)), 0, self.channel(), number, 0,
                                 self.where + place, 0, 0, key, 0, 0, 0))

    def random_command(self) -> None:
        """Any bytes but for the opcode, the file and the flags of the ring, which are not the device's."""
        number, key = self.chance.choice(NUMBERS), self.chance.getrandbits(63)
        rest = [self.chance.getrandbits(bits) for bits in (32, 32, 32, 16, 16, 32)]
        name = NAMES.get(number, "another")
        self.tried["SQE " + name] += 1
        self.keys[key] = name
        self.command(struct.pack("=BBHiIIQIIQHHI16s", Ring.URING_CMD, 0, 0, self.any_fd(), number, self.chance.choice((0, rest[0])),
                                 self.address(), self.chance.choice((0, rest[1])), self.chance.choice((0, 0, 1, rest[2])), key, 0, 0, 0,
                                 self.chance.randbytes(16)))

    def splice(self) -> None:
        out, into = os.pipe()
        try:
            os.splice(self.any_fd(), into, self.chance.choice((1, 4096, 1 << 20)), flags=os.SPLICE_F_NONBLOCK)
        finally:
            os.close(out)
            os.close(into)

    def close(self) -> None:
        if not self.channels:
            return
        fd = self.channel()
        messages.poll(fd)
        self.channels.remove(fd)
        os.close(fd)

    STEPS = ((likely_call, 12), (random_call, 4), (connect, 2), (accept, 2), (write, 8), (write_anything, 1), (publish, 2), (read, 6),
             (likely_command, 4), (random_command, 2), (splice, 1), (close, 1))

    def run(self, deadline: float) -> None:
        steps, weights = zip(*self.STEPS, strict=True)
        while time.monotonic() < deadline:
            self.tried["steps"] += 1
            with contextlib.suppress(OSError):
                self.chance.choices(steps, weights)[0](self)


def disturbed() -> None:
    """Calls that wait do so for a moment."""
    def interrupt(*_) -> None:
        raise InterruptedError

    signal.signal(signal.SIGALRM, interrupt)
    signal.siginterrupt(signal.SIGALRM, True)
    signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)


def process(session: str, name: str, portal: int, deadline: float, seed: str, report: int) -> None:
    fuzzer = Fuzzer(session, name, portal, seed)
    disturbed()
    while time.monotonic() < deadline:
        # Between two steps.
        with contextlib.suppress(OSError):
            fuzzer.run(deadline)
    signal.setitimer(signal.ITIMER_REAL, 0)
    os.write(report, json.dumps([fuzzer.tried, fuzzer.done]).encode() + b"\n")


def fuzz(session: str, name: str, seconds="60", seed="1") -> None:
    deadline = time.monotonic() + float(seconds)
    portal = messages.bind(name, flags=NONBLOCK)
    out, report = os.pipe()
    children = [messages.child(process, session, name, portal, deadline, f"{seed}-{number}", report) for number in range(PROCESSES)]
    for pid in children:
        messages.ends(pid)
    os.close(report)
    with os.fdopen(out) as lines:
        found = [json.loads(line) for line in lines]
    tried, done = (sum((collections.Counter(each[at]) for each in found), collections.Counter()) for at in (0, 1))
    print(json.dumps({what: [count, done[what]] for what, count in sorted(tried.items())}), flush=True)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
