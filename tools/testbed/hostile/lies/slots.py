# SPDX-License-Identifier: GPL-2.0
"""Slots: acceptances that make none, and the memory of writes whose data is fetched."""

import time

from pyverbs.pyverbs_error import PyverbsError

from .. import wire
from ..server import Honest, Server
from ..verbs import Closed, Failed
from ..victim import LONG, Victim
from .keys import HoldsReads, orders_meanwhile, reads_the_clients_memory
from .table import REFUSED, comes_back, expect, lie, like, writes_and_reads


class Slots(Honest):
    """An honest server with slots."""

    slot_size = 8192
    flags = wire.NEW_RKEY


def accepts(**fields) -> type[Honest]:
    return like(Slots, acceptance=fields)


def writes(v: Victim) -> None:
    """Writes that are pushed and fetched have the right data, and the path goes on."""
    writes_and_reads(v, 4096, 16384, 61440)


def has_asked(server: Server) -> str | None:
    kinds = {request.header["type"] for request in server.requests_that(lambda r: r.is_io_write)}
    return None if kinds == {wire.WRITE_HDR, wire.FETCH_HDR} else f"writes of types {kinds}"


def then_checked(v: Victim) -> None:
    writes(v)
    v.tell("order 0")


lie("slots", Slots, then_checked, has_asked)
lie("slots of no size", accepts(slot_size=0), expect(*REFUSED))
lie("slots smaller than headers", accepts(slot_size=1, max_hdr_size=4100), expect(*REFUSED))
lie("slots that are more than immediates can name", accepts(queue_depth=65535), expect(*REFUSED))
for size in ((1 << 20) + 1, 0xFFFFFFFF):
    lie(f"slots for requests of up to {size:#x} bytes", accepts(queue_depth=10244, max_io_size=size), expect(*REFUSED))
lie("slots without extensions", like(Slots, acceptance={"ext": 0}, slot_size=0), expect("OK"))
# The session information then has other sizes than the client expects.
lie("slots of another size than described", accepts(slot_size=4), expect(*REFUSED, "ETIMEDOUT"))


def read_last(server: Server) -> str | None:
    """Reads from the memory of the last write that was to be fetched; says so if that succeeds."""
    request = server.requests_that(lambda r: r.header["type"] == wire.FETCH_HDR)[-1]
    try:
        server.fetch(request)
    except (Failed, Closed, OSError, PyverbsError) as error:
        print(f"refused: {error}", flush=True)
        return None
    return "memory that a write had given back could be read"


class AnswersAtOnce(Slots):
    """Answers a write without having fetched its data."""

    def fetch(self, server, request):
        request.data = b""


def keeps_its_memory(*may_end: str):
    """A write ends; two seconds later nobody may read its memory."""
    def victim(v: Victim) -> None:
        v.must_map().fail_fast()
        said = v.write(LONG)
        assert said in may_end, said
        time.sleep(2)
        v.tell("order 0")
    return victim


lie("write answered before its data is fetched", AnswersAtOnce, keeps_its_memory("OK"), read_last)


def says(kind: int, error: int = 0):
    """Answers a write as `kind`, and invalidates no key."""
    def spot(_, server, request):
        if request.is_io_write:
            server.fetch(request)
            return server.end(request, error, kind=kind)
        return Slots.spot(_, server, request)
    return like(Slots, spot=spot)


for number in (wire.IMM_ANSWER_INV, wire.IMM_ANSWER_SAME_KEY, wire.IMM_ANSWER):
    lie(f"write whose key is not invalidated, answer of type {number}", says(number), keeps_its_memory("OK", "EIO"),
        read_last)
lie("write that fails and whose key is not invalidated", says(wire.IMM_ANSWER_INV, 5), keeps_its_memory("EIO"), read_last)


class HoldsReadsInSlots(HoldsReads, Slots):
    """The connections allow the server to read, but not the memory of reads."""


lie("memory of a read is read, with slots", HoldsReadsInSlots, orders_meanwhile, reads_the_clients_memory)


class WritesThere(Slots):
    """Writes to the memory of a write."""

    def spot(self, server, request):
        if request.is_io_write and server.paths == 1:
            return server.put_data(request, b"\xEE" * request.desc[2])
        return super().spot(server, request)


def unchanged(v: Victim) -> None:
    v.must_map()
    v.page[:LONG] = b"\x42" * LONG
    said = v.write(LONG)
    assert said == "OK", said
    assert v.page[:LONG] == b"\x42" * LONG, "the data of a write was changed"
    comes_back(v)


lie("memory of a write that is written to", WritesThere, unchanged)


class Beyond(Slots):
    """Fetches more than the write has."""

    def fetch(self, server, request):
        if server.paths > 1:
            return super().fetch(server, request)
        request.header["len"] += 4096
        try:
            return super().fetch(server, request)
        except Failed as error:
            raise Closed("as it should be") from error


def recovers(v: Victim) -> None:
    v.must_map()
    said = v.write(LONG)
    assert said == "OK", said
    comes_back(v)


lie("more is fetched than the write has", Beyond, recovers)
