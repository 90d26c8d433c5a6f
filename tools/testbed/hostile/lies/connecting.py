# SPDX-License-Identifier: GPL-2.0
"""Connections: bad acceptances and rejections, and disconnects at each step."""

import os
import re
import subprocess
import time

from .. import wire
from ..server import Honest
from ..victim import Victim
from .table import REFUSED, expect, goes_on, lie, like, not_mapped


def accepts(**fields) -> type[Honest]:
    return like(acceptance=fields)


for name, value in (("magic", 0), ("magic", 0x1BBC), ("version", 0x0100), ("version", 0x0300), ("errno", 1),
                    ("errno", 0xFF98), ("errno", 0x8000), ("queue_depth", 0), ("max_io_size", 0), ("max_hdr_size", 0),
                    ("max_hdr_size", 23), ("max_io_size", 0xFFFFFFFF), ("max_hdr_size", 0xFFFFFFFF),
                    ("max_io_size", 0x7FFFFFFF), ("max_hdr_size", 0x80000000), ("max_io_size", 1 << 28)):
    lie(f"accepted with {name}={value:#x}", accepts(**{name: value}), expect(*REFUSED))
# Sizes that fit an immediate, and are out of all proportion; where the session information does not fit
# the number of chunks, its receive is too short, which ends the connection.
GEOMETRY = (*REFUSED, "ENOMEM", "E2BIG", "ETIMEDOUT", "EMSGSIZE", "ECONNABORTED", "OK")
lie("accepted with 65535 chunks of 4 KiB", accepts(queue_depth=65535, max_io_size=4056, max_hdr_size=40), expect(*GEOMETRY))
# The regions of a path with more chunks than a client uses, which are the first ones: as many as the block
# layer has tags, and those of messages; and a region for each 64 of the 512 buffers for small requests.
REGIONS = 10_240 + 4 + 512 // 64


def takes_no_more_chunks(v: Victim) -> None:
    v.must_map()
    resources = subprocess.run(["rdma", "resource", "show", "rxe0"], check=True, stdout=subprocess.PIPE, text=True).stdout
    assert int(re.search(r"\bmr (\d+)", resources)[1]) == REGIONS, resources
    assert v.read() == "OK"


lie("20000 chunks", like(depth=20000, max_io_size=4096), takes_no_more_chunks)
lie("accepted with 2 chunks of 64 MiB", accepts(queue_depth=2, max_io_size=(1 << 26) - 4096), expect(*GEOMETRY))
lie("accepted with one chunk", like(depth=1), expect(*GEOMETRY))
lie("accepted with room for 1 byte", like(max_io_size=1), expect(*REFUSED, "EMSGSIZE"))
lie("accepted with room for 512 bytes", like(max_io_size=512), expect(*REFUSED, "OK"))
lie("accepted with headers of 24 bytes", like(max_hdr_size=24), expect(*REFUSED, "EMSGSIZE"))
lie("accepted with all flags", accepts(flags=0xFFFFFFFF ^ wire.NEW_RKEY, rest=(1 << 64) - 1), expect("OK"))
lie("accepted by another version of the extensions", accepts(ext=2), expect("OK"))


def rejects(private: bytes) -> type[Honest]:
    class Rejects(Honest):
        def connect(self, server, connection, asked):
            connection.reject(private)
    return Rejects


for number in (0, 1, -1, -4096, -32768):
    lie(f"rejected with {number}", rejects(wire.CONN_RSP.pack(errno=number)),
        lambda v: not_mapped(v))
# ERESTARTSYS and the like: the kernel would start the system call of the user again.
for number in (-134, -512, -516):
    lie(f"rejected with {number}", rejects(wire.CONN_RSP.pack(errno=number)), expect("EIO"))
for length in (1, 6):
    lie(f"rejected with {length} bytes", rejects(wire.CONN_RSP.pack(errno=-2)[:length]), lambda v: not_mapped(v))
lie("rejected with noise", rejects(b"\xA5" * 56), lambda v: not_mapped(v))


class SecondOther(Honest):
    """Accepts the connections for I/O with other numbers than the service connection."""

    def connect(self, server, connection, asked):
        fields = {"queue_depth": 1, "max_io_size": 1} if asked["cid"] else {}
        connection.accept(server.acceptance(**fields))


class SecondRefused(Honest):
    def connect(self, server, connection, asked):
        if asked["cid"]:
            return connection.reject(wire.CONN_RSP.pack(errno=-12))
        connection.accept(server.acceptance())


lie("connections accepted with different numbers", SecondOther, expect("OK", *REFUSED))
lie("second connection rejected", SecondRefused, lambda v: not_mapped(v))


def leaves(at: str) -> type[Honest]:
    """Disconnects at a step, each time."""
    class Leaves(Honest):
        def connect(self, server, connection, asked):
            super().connect(server, connection, asked)
            if at == f"connection {asked['cid']}":
                server.later(0.02, connection.disconnect)

        def info(self, server, connection):
            if at == "INFO":
                return [con.disconnect() for con in server.cons.values()]
            if not at.startswith("connection"):  # Else the session could be there before it is left.
                super().info(server, connection)

        def introduce(self, server, request):
            if at == "SESS_INFO":
                return request.by.disconnect()
            super().introduce(server, request)

        def open(self, server, request):
            if at == "OPEN":
                return request.by.disconnect()
            super().open(server, request)
    return Leaves


for step in ("connection 0", "connection 1", "connection 2", "INFO", "SESS_INFO", "OPEN"):
    lie(f"disconnected at {step}", leaves(step), lambda v: not_mapped(v))


class LeavesAtRead(Honest):
    """Disconnects at the first read, and serves the client that comes back."""

    left = False
    quietly = False

    def spot(self, server, request):
        if not self.left and request.is_io_read:
            self.left = True
            if self.quietly:
                return request.by.pair.break_off()
            return [con.disconnect() for con in server.cons.values()]
        super().spot(server, request)


lie("disconnected at a read", LeavesAtRead, lambda v: (v.must_map(), goes_on(v)))


class StopsTooSoon(Honest):
    """Loses the session at the first read.  When the disk is opened again, reports it durable before it answers, and once
    more afterwards."""

    opens = seen = early = 0

    def spot(self, server, request):
        if self.opens == 1 and request.is_io_read:
            server.run = os.urandom(16)
            return [con.disconnect() for con in server.cons.values()]
        super().spot(server, request)

    def open(self, server, request):
        self.opens += 1
        if self.opens == 1:
            return super().open(server, request)
        self.report(server)
        server.later(1, lambda: self.open_late(server, request))

    def open_late(self, server, request):
        self.early = self.seen
        super().open(server, request)
        server.later(1, lambda: self.report(server))

    def report(self, server):
        server.imm(server.cons[0], wire.imm(wire.IMM_DURABLE, self.device_id))

    def durable_seen(self, server, number):
        assert number == self.device_id
        self.seen += 1


def is_noted_when_it_is_open(server) -> str | None:
    liar = server.behaviour
    return None if (liar.opens, liar.early, liar.seen) == (2, 0, 1) else f"{liar.opens}, {liar.early}, {liar.seen}"


def waits_for_the_second_report(v) -> None:
    v.must_map()
    goes_on(v)
    time.sleep(2)
    v.tell("order 0")


lie("durable before it is open again", StopsTooSoon, waits_for_the_second_report, is_noted_when_it_is_open)
