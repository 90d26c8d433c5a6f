# SPDX-License-Identifier: GPL-2.0
"""What a hostile server says, and what is to become of its client.

A lie is what the server does in the place of an honest one, what the client's user
does, and what the server looks at afterwards.  `expect` takes the names of the errors
that a user may see."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from pyverbs.pyverbs_error import PyverbsError

from . import wire
from .server import Honest, Server
from .values import around, numbers
from .verbs import Closed, Failed
from .victim import Victim


@dataclass(frozen=True)
class Lie:
    name: str
    behaviour: type[Honest]
    victim: Callable[[Victim], None]
    # What the server does when it is told to; those that give a text have failed.
    orders: tuple[Callable[[Server], str | None], ...] = ()


LIES: list[Lie] = []


def lie(name: str, behaviour: type[Honest], victim, *orders) -> None:
    LIES.append(Lie(name, behaviour, victim, orders))


def like(base: type[Honest] = Honest, **changes) -> type[Honest]:
    return type("Liar", (base,), changes)


# What users do.

def expect(*wanted: str):
    """Maps the disk, with one of these outcomes; one that is mapped is read, too."""
    def victim(v: Victim) -> None:
        said = v.map()
        assert said in wanted, f"map_device: {said} for {' or '.join(wanted)}"
        if said == "OK":
            v.impatient()
            v.read()
    return victim


def reads(*wanted: str, length: int = 4096, times: int = 1):
    """Reads from the disk, with these outcomes."""
    def victim(v: Victim) -> None:
        v.must_map().impatient()
        for _ in range(times):
            said = v.read(length)
            assert said in wanted, f"read: {said} for {' or '.join(wanted)}"
    return victim


def goes_on(v: Victim) -> None:
    """The path has survived: the next read is an ordinary one."""
    said = v.read()
    assert said == "OK", f"read after that: {said}"


def reads_and_goes_on(*wanted: str):
    def victim(v: Victim) -> None:
        reads(*wanted)(v)
        assert v.tell("paths") == "1 path", "the client has connected again"
        goes_on(v)
    return victim


def comes_back(v: Victim) -> None:
    """The path is given up, and connected again; reads go on."""
    deadline = time.monotonic() + 20
    while v.tell("paths") == "1 path":
        assert time.monotonic() < deadline, "the client has kept the path"
        time.sleep(0.2)
    goes_on(v)


def reads_and_recovers(*wanted: str):
    """The path is given up, and comes back."""
    def victim(v: Victim) -> None:
        v.must_map()
        said = v.read()
        assert said in wanted, f"read: {said} for {' or '.join(wanted)}"
        comes_back(v)
    return victim


# Keys that are believed to be gone.

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


def owns_its_memory(length: int = 4096):
    """A read ends; two seconds later nobody else may write to its memory."""
    def victim(v: Victim) -> None:
        v.must_map().impatient()
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
    v.must_map().impatient()
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


def once(what) -> type[Honest]:
    """Does `what` with the first read of the user; the path that it breaks comes back to an
    honest server, as else the read would be sent again for ever."""
    class Once(Honest):
        done = False

        def spot(self, server, request):
            if self.done or not request.is_io_read:
                return super().spot(server, request)
            self.done = True
            return what(server, request)
    return Once


def beyond(at: int, length: int):
    """Writes to the memory of a read, and also where that is not."""
    def what(server, request):
        addr, key, wanted = request.desc
        request.by.pair.write(b"\xEE" * (wanted + length), addr + at, key)
        server.invalidate(request)
        server.end(request)
    return what


def keeps_the_rest(v: Victim) -> None:
    v.must_map().impatient()
    v.fill()
    v.read(4096)
    assert v.is_filled(4096), "more was written than the read had asked for"


lie("data longer than asked for", once(beyond(0, 1)), keeps_the_rest)
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
    v.must_map().impatient()
    v.beside(v.read)
    v.tell("wait read")
    v.tell("order 0")


lie("memory of a read is read", HoldsReads, orders_meanwhile, reads_the_clients_memory)

# Answers that nobody asked for, or not like that.


def extra(what, before: bool = False) -> type[Honest]:
    """An honest server that also does `what` with the first request of the user, which the path
    does not survive."""
    def once_more(server, request):
        if before:
            what(server, request)
        Honest.spot(server.behaviour, server, request)
        if not before:
            what(server, request)
    return once(once_more)


def other(server: Server, request):
    """Another connection of the path than the one that the request came by."""
    return next(con for cid, con in sorted(server.cons.items()) if con is not request.by and cid > 0)


ANY = ("OK", "EIO", "ETIMEDOUT")

lie("answered twice", extra(lambda s, r: s.end(r)), reads_and_recovers("OK"))
lie("answered twice, another error", extra(lambda s, r: s.end(r, 5)), reads_and_recovers("OK"))
lie("answer to a chunk not asked for", extra(lambda s, r: s.end(r, chunk=(r.chunk + 1) % s.behaviour.depth), before=True),
    reads_and_recovers("OK"))
for number in (*around(Honest.depth)[1:], 0x7FFFF):
    lie(f"answer to chunk {number}", extra(lambda s, r, n=number: s.end(r, chunk=n, kind=wire.IMM_ANSWER), before=True),
        reads(*ANY))


class OnAnother(Honest):
    """Answers the first read on another connection, before anything of the request's own one is
    known."""

    lied = False

    def spot(self, server, request):
        if self.lied:
            return super().spot(server, request)
        self.lied = True
        if request.is_io_read:
            server.put_data(request, b"\x11" * request.desc[2])
        server.end(request, kind=self.kind, by=other(server, request))

    kind = wire.IMM_ANSWER


lie("answer on another connection", OnAnother, owns_its_memory(), write_to_last)
lie("answer on another connection, key invalidated", like(OnAnother, kind=wire.IMM_ANSWER_INV), owns_its_memory(),
    write_to_last)


class OnService(OnAnother):
    """The same, on the service connection."""

    def spot(self, server, request):
        if self.lied:
            return super().spot(server, request)
        self.lied = True
        server.end(request, kind=wire.IMM_ANSWER, by=server.cons[0])


lie("answer on the service connection", OnService, owns_its_memory(), write_to_last)
lie("answer on another connection, the path is given up", OnAnother, reads_and_recovers("OK"))


def fails_with(error: int) -> type[Honest]:
    class Fails(Honest):
        def spot(self, server, request):
            server.answer(request, error=error)
    return Fails


def some_error(v: Victim) -> None:
    v.must_map().impatient()
    said = v.read()
    assert said not in ("OK",), "a read that the server has ended with an error has succeeded"


for number in (1, 5, 11, 116, 255, 256, 511):
    lie(f"error {number}", fails_with(number), some_error)

lie("answered twice, key invalidated", extra(lambda s, r: s.end(r, kind=wire.IMM_ANSWER_INV)), reads_and_recovers("OK"))

# Immediates of every kind, and messages that nobody waits for.


def sends_immediates(kinds, cids=None):
    def order(server: Server) -> None:
        for cid, connection in server.cons.items():
            for kind in kinds if cids is None or cid in cids else ():
                for payload in (0, 1, (1 << 27) - 1, 1 << 27, (1 << 28) - 1):
                    try:
                        # The client may leave at once; whoever waits would miss that it comes back.
                        connection.pair.write_imm(b"", wire.imm(kind, payload))
                        server.step()
                    except (Closed, Failed, PyverbsError):
                        return
    return order


# What a server may send on the service connection, or anywhere, and what only a client sends.
SERVICE = (wire.IMM_FENCE_DONE, wire.IMM_NOTICE, wire.IMM_HEARTBEAT, wire.IMM_HEARTBEAT_ACK)
UNKNOWN = (6, 7, *range(10, 16))
CLIENTS = (wire.IMM_REQUEST, wire.IMM_FENCE)


def orders_and_goes_on(v: Victim) -> None:
    v.must_map().impatient()
    v.read()
    v.tell("order 0")
    assert v.tell("paths") == "1 path", "the client has connected again"
    goes_on(v)


def orders_and_recovers(v: Victim) -> None:
    """The path breaks, and comes back."""
    v.must_map()
    v.read()
    v.tell("order 0")
    comes_back(v)


def flood(kind: int, count: int = 1000):
    def order(server: Server) -> None:
        pair = server.cons[0].pair
        for number in range(count):
            last = pair.write_imm(b"", wire.imm(kind, number))
            server.step()
        pair.wait_sent(last, 60)
    return order


lie("immediates of servers", Honest, orders_and_goes_on, sends_immediates(SERVICE, (0,)))
lie("unknown immediates", Honest, orders_and_goes_on, sends_immediates(UNKNOWN))
for kind in CLIENTS:
    for cid in (0, 1):
        lie(f"immediate of type {kind}, connection {cid}", Honest, orders_and_recovers, sends_immediates((kind,), (cid,)))
for kind in SERVICE:
    lie(f"immediate of type {kind}, connection 1", Honest, orders_and_recovers, sends_immediates((kind,), (1,)))
lie("flood of heartbeats", Honest, orders_and_goes_on, flood(wire.IMM_HEARTBEAT))
lie("flood of answers to heartbeats", Honest, orders_and_goes_on, flood(wire.IMM_HEARTBEAT_ACK))
lie("flood of answers to fences", Honest, orders_and_goes_on, flood(wire.IMM_FENCE_DONE))
lie("flood of notices", Honest, orders_and_goes_on, flood(wire.IMM_NOTICE))
lie("flood of unknown immediates", Honest, orders_and_goes_on, flood(12))


def known_notices(server: Server) -> None:
    pair = server.cons[0].pair
    for _ in range(200):
        last = pair.write_imm(b"", wire.imm(wire.IMM_NOTICE, server.behaviour.device_id))
        server.step()
    pair.wait_sent(last, 60)


lie("flood of notices of the disk", Honest, orders_and_goes_on, known_notices)


def sends(data: bytes, cid: int = 1, count: int = 1):
    def order(server: Server) -> None:
        for _ in range(count):
            server.cons[cid].pair.send(data)
    return order


for cid in (0, 1):
    lie(f"message that is too long, connection {cid}", Honest, orders_and_recovers, sends(b"x" * 9000, cid))
    lie(f"messages without immediate, connection {cid}", Honest, orders_and_recovers, sends(b"", cid, 100))
lie("session information again", Honest, orders_and_recovers,
    lambda server: server.cons[0].pair.send(server.info_rsp()) and None)

# Keys of chunks that come with the answers.


def with_keys(**fields) -> type[Honest]:
    def what(server, request):
        server.put_data(request, b"")
        server.invalidate(request)
        kind = wire.IMM_ANSWER_INV if request.wants_invalidation else wire.IMM_ANSWER
        server.imm(request.by, wire.answer_imm(request.chunk, 0, kind), server.rkey(request.chunk, **fields))
    return like(once(what), flags=wire.NEW_RKEY)


lie("keys with the answers", with_keys(), reads_and_goes_on("OK"))
for kind in (0, 3, 5, 65535):
    lie(f"key message of type {kind}", with_keys(type=kind), reads(*ANY, times=2))
for number in (15, 16, 65535):
    lie(f"key of chunk {number}", with_keys(chunk=number), reads(*ANY, times=2))
for number in (0, 1, 0xFFFFFFFF):
    lie(f"key {number:#x}", with_keys(key=number), reads(*ANY, times=3))


def keys_cut(length: int) -> type[Honest]:
    def what(server, request):
        message, number = server.rkey(request.chunk)[:length], wire.answer_imm(request.chunk)
        if message:
            request.by.pair.send_imm(message, number)
        else:
            request.by.pair.write_imm(b"", number)
    return like(once(what), flags=wire.NEW_RKEY)


for length in (0, 1, 7):
    lie(f"key message of {length} bytes", keys_cut(length), reads(*ANY, times=2))

# Connecting.

REFUSED = ("ECONNRESET", "EPROTO", "EINVAL")


def accepts(**fields) -> type[Honest]:
    return like(acceptance=fields)


for name, value in (("magic", 0), ("magic", 0x1BBC), ("version", 0x0100), ("version", 0x0300), ("errno", 1),
                    ("errno", 0xFF98), ("errno", 0x8000), ("queue_depth", 0), ("max_io_size", 0), ("max_hdr_size", 0),
                    ("max_hdr_size", 23), ("max_io_size", 0xFFFFFFFF), ("max_hdr_size", 0xFFFFFFFF),
                    ("max_io_size", 0x7FFFFFFF), ("max_hdr_size", 0x80000000), ("max_io_size", 1 << 28)):
    lie(f"accepted with {name}={value:#x}", accepts(**{name: value}), expect(*REFUSED))
# What fits an immediate, and is out of all proportion; where the session information does not fit
# the number of chunks, its receive is too short, which ends the connection.
GEOMETRY = (*REFUSED, "ENOMEM", "E2BIG", "ETIMEDOUT", "EMSGSIZE", "ECONNABORTED", "OK")
lie("accepted with 65535 chunks of 4 KiB", accepts(queue_depth=65535, max_io_size=4056, max_hdr_size=40), expect(*GEOMETRY))
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
for length in (1, 6):
    lie(f"rejected with {length} bytes", rejects(wire.CONN_RSP.pack(errno=-2)[:length]), lambda v: not_mapped(v))
lie("rejected with noise", rejects(b"\xA5" * 56), lambda v: not_mapped(v))


def not_mapped(v: Victim) -> None:
    said = v.map()
    assert said != "OK", "a connection that was refused makes a session"


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


for step in ("connection 0", "connection 1", "connection 2", "INFO"):
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

# Session information.


def tells(message) -> type[Honest]:
    class Tells(Honest):
        def info(self, server, connection):
            for part in message(server):
                connection.pair.send(part)
    return Tells


def descs(change) -> type[Honest]:
    """Session information with descriptors that were changed."""
    def message(server):
        return [wire.info_rsp(change([list(desc) for desc in wire.info_descs(server.info_rsp())], server.chunk_size))]
    return tells(message)


def with_first(at: int, value) -> type[Honest]:
    def change(found, chunk):
        found[0][at] = value(chunk) if callable(value) else value
        return found
    return descs(change)


INFO_LIES = {
    "type 0": tells(lambda s: [wire.info_rsp(wire.info_descs(s.info_rsp()), type=0)]),
    "type 65535": tells(lambda s: [wire.info_rsp(wire.info_descs(s.info_rsp()), type=65535)]),
    **{f"{count} descriptors": tells(lambda s, c=count: [wire.info_rsp(wire.info_descs(s.info_rsp()), sg_cnt=c)])
       for count in (0, 1, 3, 15, 17, 32, 65535)},
    "no bytes": tells(lambda s: [b""]),
    "7 bytes": tells(lambda s: [s.info_rsp()[:7]]),
    "one byte less": tells(lambda s: [s.info_rsp()[:-1]]),
    "one byte more": tells(lambda s: [s.info_rsp() + b"x"]),
    "an empty chunk": with_first(2, 0),
    "a chunk that is short": with_first(2, lambda chunk: chunk - 1),
    "a chunk too many": with_first(2, lambda chunk: 2 * chunk),
    "an endless chunk": with_first(2, 0xFFFFFFFF),
    "an address at the end": with_first(0, (1 << 64) - 1),
    "an address that wraps": with_first(0, lambda chunk: (1 << 64) - chunk + 1),
}
for what, behaviour in INFO_LIES.items():
    lie(f"session information, {what}", behaviour, lambda v: not_mapped(v))
lie("session information, foreign addresses", with_first(0, 4096), expect("OK", *REFUSED, "ETIMEDOUT", "EIO"))
lie("session information, twice", tells(lambda s: [s.info_rsp()] * (2 if s.paths == 1 else 1)),
    expect("OK", *REFUSED, "ECONNABORTED"))


class InfoEarly(Honest):
    """Tells where the chunks are before it is asked."""

    def connect(self, server, connection, asked):
        super().connect(server, connection, asked)
        if asked["cid"] == 0:
            server.later(0.05, lambda: connection.pair.send(server.info_rsp()))


lie("session information, early", InfoEarly, expect("OK", *REFUSED, "ECONNABORTED"))

# The block device.


def introduces(**fields) -> type[Honest]:
    return like(sess_info=fields)


for name, value, wanted in (("type", 0, ("EPROTO",)), ("type", 3, ("EPROTO",)), ("type", 65535, ("EPROTO",)),
                            ("ver", 0, ("OK", "EPROTO")), ("ver", 1, ("OK", "EPROTO")), ("ver", 3, ("OK", "EPROTO")),
                            ("ver", 255, ("OK", "EPROTO"))):
    lie(f"SESS_INFO_RSP with {name}={value}", introduces(**{name: value}), expect(*wanted))


def opens(**fields) -> type[Honest]:
    return like(opened=fields)


for kind in (0, 2, 4, 65535):
    lie(f"OPEN_RSP of type {kind}", opens(type=kind), expect("EPROTO"))
for number in (0, 1, 511, 513, 1023, 49152, 65535):
    lie(f"logical blocks of {number}", opens(logical_block_size=number), expect("EINVAL"))
for number in (1 << 54, (1 << 54) + 1, 1 << 55, 1 << 63, (1 << 64) - 1):
    lie(f"disk of {number:#x} sectors", opens(nsectors=number), expect("EFBIG", "EINVAL", "EPROTO"))
lie("disk of one sector", opens(nsectors=1), expect("OK", "EINVAL"))
lie("disk without a sector", opens(nsectors=0), expect("OK", "EINVAL"))

# Mapped, whatever is in these.
LIMITS = ("max_hw_sectors", "max_write_zeroes_sectors", "max_discard_sectors", "discard_granularity", "discard_alignment",
          "physical_block_size", "max_segments", "secure_discard", "rotational", "cache_policy", "identity", "details",
          "details_flags", "details_physical", "io_min", "io_opt", "max_secure_erase_sectors", "alignment_offset",
          "cache_run")
READ_AHEAD_KIB = 64 * 1024


def maps_and_reads(v: Victim) -> None:
    said = v.map()
    assert said in ("OK", "EINVAL", "EPROTO"), f"map_device: {said}"
    if said == "OK":
        goes_on(v)
        ahead = int(v.attribute("queue/read_ahead_kb"))
        assert ahead <= READ_AHEAD_KIB, f"the server has the client read {ahead} KiB ahead"


def limit_values(name: str) -> tuple[int, ...]:
    top = numbers(wire.OPEN_ANSWER.field(name).size)[-1]
    return (1, top // 2 + 1, top)


for value in (2, 1, 0):
    lie(f"limits of a disk, all at boundary {value}", opens(**{name: limit_values(name)[value] for name in LIMITS}),
        maps_and_reads)
for name in ("io_min", "details_physical", "discard_granularity", "physical_block_size", "io_opt"):
    lie(f"limits of a disk, {name} at its greatest", opens(**{name: limit_values(name)[-1]}), maps_and_reads)

# Never an answer.


class Silent(Honest):
    """Answers nothing from a step on."""

    def __init__(self):
        super().__init__()
        if self.at == "OPEN":
            self.open = lambda server, request: None
        elif self.at == "SESS_INFO":
            self.introduce = lambda server, request: None
        elif self.at == "INFO":
            self.info = lambda server, connection: None
        elif self.at == "connection":
            self.connect = lambda server, connection, asked: None

    at = ""


def killed(v: Victim) -> None:
    """A user who has waited for his disk is killed, and comes back."""
    said = v.map(3)
    assert said in ("KILLED", *REFUSED), f"map_device: {said}"


for step in ("connection", "INFO", "SESS_INFO", "OPEN"):
    lie(f"no answer to {step}", like(Silent, at=step), killed)


def read_is_given_up(v: Victim) -> None:
    """Nobody answers a read: it ends in time, if not by another path.  To be rid of the disk the
    user disconnects the server, as the request itself is kept until that answers."""
    v.must_map().impatient()
    said = v.read()
    assert said in ("ETIMEDOUT", "OK"), f"a read that nobody answers: {said}"
    v.disconnect()


lie("no answer to a read", HoldsReads, read_is_given_up)
# The connection is silent from then on, and nobody tells.
lie("broken off at a read", like(LeavesAtRead, quietly=True), read_is_given_up)
