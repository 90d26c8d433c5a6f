# SPDX-License-Identifier: GPL-2.0
"""Keys of the client's memory: falsely reported as invalidated, or used again."""

import time

from pyverbs.pyverbs_error import PyverbsError

from .. import wire
from ..server import Honest, Server
from ..verbs import Closed, Failed
from ..victim import LONG, SHORT, Victim
from .table import lie, like, once


class SaysInvalidated(Honest):
    """Answers "key invalidated", and has not invalidated it."""

    def spot(self, server, request):
        if request.is_io_read:
            server.put_data(request, b"\x11" * request.desc[2])
            return server.end(request, kind=wire.IMM_ANSWER_INV)
        return super().spot(server, request)


def write_to_last(server: Server) -> str | None:
    """Writes to the memory of the last read; says so if that is taken."""
    request = server.requests_that(lambda r: r.is_read and r.at_spot)[-1]
    addr, key, length = request.desc
    try:
        number = request.by.pair.write(b"\xEE" * min(length, 4096), addr, key)
        request.by.pair.wait_sent(number, 60)
    except (Failed, Closed, OSError, PyverbsError) as error:
        print(f"refused: {error}", flush=True)
        return None
    return "a write to memory that a read had given back was taken"


def owns_its_memory(length: int = LONG):
    """A read ends; two seconds later nobody else may write to its memory."""
    def victim(v: Victim) -> None:
        v.must_map().fail_fast()
        v.fill()
        said = v.read(length)
        v.fill()
        time.sleep(2)
        v.tell("order 0")
        time.sleep(0.5)
        assert v.is_filled(), f"the memory of a read that had ended ({said}) was written to by the server"
    return victim


lie("key invalidated, but not so", SaysInvalidated, owns_its_memory(), write_to_last)
lie("key invalidated, but not so, 60 KiB", SaysInvalidated, owns_its_memory(61440), write_to_last)


class InvalidatesAnother(SaysInvalidated):
    """Invalidates a key, but that of the read before."""

    last = None

    def spot(self, server, request):
        if request.is_io_read and self.last and self.last != request.desc[1]:
            request.by.pair.send_inv(self.last)
            self.last = None
            return super().spot(server, request)
        if request.is_io_read:
            self.last = request.desc[1]
        # The first read is left to the client to invalidate.
        if request.is_io_read:
            server.put_data(request, b"")
            return server.end(request, kind=wire.IMM_ANSWER)
        return super().spot(server, request)


def twice_owns(v: Victim) -> None:
    v.must_map().fail_fast()
    v.read()
    v.read()
    v.fill()
    time.sleep(1)
    v.tell("order 0")
    time.sleep(0.5)
    assert v.is_filled(), "the memory of a read that had ended was written to by the server"


lie("another key invalidated", InvalidatesAnother, twice_owns, write_to_last)


class Replays(Honest):
    """Honest answers; the key is used again after that."""


lie("key used again", Replays, owns_its_memory(), write_to_last)
lie("key used again without invalidation", like(spot=lambda self, server, request: (
    server.put_data(request, b"") if request.is_io_read else None,
    server.end(request, kind=wire.IMM_ANSWER))), owns_its_memory(), write_to_last)


class WritesLate(Honest):
    """Ends reads with an error, and writes to their memory afterwards."""

    def spot(self, server, request):
        server.end(request, 5, kind=wire.IMM_ANSWER)


lie("key used after an error", WritesLate, owns_its_memory(), write_to_last)


lie("key used again after an answer that says nothing of it", like(spot=lambda self, server, request: (
    server.put_data(request, b"") if request.is_io_read else None,
    server.end(request, kind=wire.IMM_ANSWER_SAME_KEY))), owns_its_memory(), write_to_last)


# Small reads land in a buffer that stays registered.

def writes_to_the_buffer(server: Server) -> str | None:
    return None if write_to_last(server) else "the buffer of a small read is not registered any more"


lie("buffer used again", Replays, owns_its_memory(SHORT), writes_to_the_buffer)


def reads_again(v: Victim) -> None:
    v.must_map().fail_fast()
    v.session("reconnect_delay_ms", 10)
    said = v.read(SHORT)
    assert said == "OK", f"a small read whose path has come back: {said}"
    assert not v.is_filled(), "a small read has got no data"


def invalidates_the_buffer(server, request):
    request.by.pair.send_inv(request.desc[1])
    server.answer(request, b"")


lie("buffer invalidated", once(invalidates_the_buffer), reads_again)
lie("small read answered as a registered one", once(lambda server, request: (
    server.put_data(request, b""), server.end(request, kind=wire.IMM_ANSWER_INV))), reads_again)


def beyond(at: int, length: int):
    """Writes to the memory of a read, and also where that is not."""
    def what(server, request):
        addr, key, wanted = request.desc
        request.by.pair.write(b"\xEE" * (wanted + length), addr + at, key)
        server.invalidate(request)
        server.end(request)
    return what


def keeps_the_rest(v: Victim) -> None:
    v.must_map().fail_fast()
    v.fill()
    v.read(LONG)
    assert v.is_filled(LONG), "more was written than the read had asked for"


def keeps_the_rest_of_small_ones(v: Victim) -> None:
    v.must_map().fail_fast()
    v.fill()
    v.read(512)
    assert v.is_filled(512), "more was copied than the read had asked for"


lie("data longer than asked for", once(beyond(0, 1)), keeps_the_rest)
lie("data longer than asked for, small read", once(beyond(0, 1024)), keeps_the_rest_of_small_ones)
lie("data beyond the buffer", once(beyond(0, 1 << 16)), keeps_the_rest_of_small_ones)
lie("data before the memory", once(beyond(-64, 0)), keeps_the_rest)


def reads_the_clients_memory(server: Server) -> str | None:
    request = server.requests_that(lambda r: r.is_read and r.at_spot)[-1]
    try:
        number = request.by.pair.read(request.desc[0], request.desc[1], 64)
        request.by.pair.wait_sent(number, 60)
    except (Failed, Closed, OSError, PyverbsError) as error:
        print(f"refused: {error}", flush=True)
        return None
    return "the memory of a read could be read by the server"


class HoldsReads(Honest):
    """Does not answer the first read at all."""

    held = False

    def spot(self, server, request):
        if request.is_io_read and not self.held:
            self.held = True
            return
        super().spot(server, request)


def orders_meanwhile(v: Victim) -> None:
    v.must_map().fail_fast()
    v.beside(v.read)
    v.tell("wait read")
    v.tell("order 0")


lie("memory of a read is read", HoldsReads, orders_meanwhile, reads_the_clients_memory)


# Keys over connections that they were not made for.

def reads(server: Server) -> list:
    return server.requests_that(lambda r: r.is_read and r.at_spot)


def is_taken(request, by) -> bool:
    """Writes to the memory of a read by a connection; whether that is taken."""
    addr, key, length = request.desc
    try:
        by.pair.wait_sent(by.pair.write(b"\xEE" * length, addr, key), 60)
    except (Failed, Closed, OSError, PyverbsError) as error:
        print(f"refused: {error}", flush=True)
        return False
    return True


def writes_by_the_present_path(server: Server) -> str | None:
    request, by = reads(server)[0], reads(server)[-1].by
    assert by is not request.by, "the path is the same"
    return "a key of the lost path was taken over the present one" if is_taken(request, by) else None


def has_two_paths(v: Victim) -> None:
    """The path is lost with a read, which is answered over the next one."""
    v.must_map()
    v.session("reconnect_delay_ms", 10)
    said = v.read(LONG)
    assert said == "OK", f"a read whose path has come back: {said}"
    assert v.tell("paths") == "2 paths", "the client has kept the path"
    v.fill()
    v.tell("order 0")
    time.sleep(0.5)
    assert v.is_filled(), "the memory of a read of the lost path was written to"


lie("lost path's key over the present path", once(lambda server, request: [
    con.disconnect() for con in server.cons.values()]), has_two_paths, writes_by_the_present_path)


def writes_by_its_own(server: Server) -> str | None:
    request = reads(server)[0]
    return None if is_taken(request, request.by) else "a read's own connection cannot write to its memory"


def writes_by_another_session(server: Server) -> str | None:
    request, by = reads(server)[0], server.cons[1]
    assert by is not request.by, "there is one session only"
    return "a key of another session was taken" if is_taken(request, by) else None


def has_two_sessions(v: Victim) -> None:
    """A read of one session is under way, while there is another."""
    v.must_map().fail_fast()
    v.fill()
    v.beside(lambda: v.read(LONG))
    v.tell("wait read")
    second = Victim(f"{v.name}b", v.port, v.tell)
    second.must_map()
    try:
        v.tell("order 0")
        time.sleep(0.5)
        assert not v.is_filled(), "the memory is not that of the read"
        v.fill()
        v.tell("order 1")
        time.sleep(0.5)
        assert v.is_filled(), "the memory of a read of another session was written to"
    finally:
        second.unmap()


lie("another session's key", HoldsReads, has_two_sessions, writes_by_its_own, writes_by_another_session)


# What addresses say.

def says_nothing_of_addresses(server: Server) -> str | None:
    """Software RDMA has the kernel's own addresses, which lie in the upper half of all, for memory that
    is not given others."""
    told = reads(server)
    addresses = [request.desc[0] for request in told]
    if any(address >> 63 for address in addresses):
        return f"addresses of the kernel: {', '.join(map(hex, addresses))}"
    registered = [request.desc[0] for request in told if request.desc[2] > SHORT]
    assert 8 < len(registered) < len(told), "not all kinds of reads have come"
    if len(set(registered)) < len(registered):
        return f"an address that was there before: {', '.join(map(hex, registered))}"
    return None


def reads_of_all_kinds(v: Victim) -> None:
    v.must_map().fail_fast()
    for length in (*[LONG] * 10, *[SHORT] * 4, 512):
        assert v.read(length) == "OK"
    v.tell("order 0")


lie("addresses of reads", Honest, reads_of_all_kinds, says_nothing_of_addresses)


class Rewrites(Honest):
    """Writes to the buffer of a small read before its answer and after it, without a pause."""

    def spot(self, server, request):
        if not request.is_io_read:
            return super().spot(server, request)
        for value in range(64):
            server.put_data(request, bytes([value]) * request.desc[2])
            if value == 32:
                server.end(request, kind=wire.IMM_ANSWER_SAME_KEY)


def reads_what_stays(v: Victim) -> None:
    """What a read has returned does not change any more."""
    v.must_map().fail_fast()
    for _ in range(20):
        said = v.read(SHORT)
        assert said == "OK", f"read: {said}"
        found = bytes(v.page[:SHORT])
        time.sleep(0.05)
        assert v.page[:SHORT] == found, "the server has changed what a read had returned"
    assert v.tell("paths") == "1 path", "the client has connected again"


lie("buffer written to while it is copied", Rewrites, reads_what_stays)
