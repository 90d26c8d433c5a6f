# SPDX-License-Identifier: GPL-2.0
"""Data and checksums that do not match, and servers that do without."""

import errno
import time

from .. import wire
from ..checksum import checksum, trailer
from ..server import Honest, Server
from ..victim import LONG, SHORT, Victim
from .inv_answers import body
from .table import lie, like

ON = " data_checksum=crc32c"
# A request is sent so often.
SENT = 4


class Checks(Honest):
    """An honest server of disks with checksums."""

    opened = {"details_flags": 4}

    def open(self, server, request):
        if not wire.OPEN_REQ.unpack(request.user)["flags"] & (wire.CHECKSUMS | wire.ONLY_KNOWN):
            server.mistakes.append("OPEN does not announce checksums")
        super().open(server, request)

    def serve(self, server, request):
        io = request.io
        if not io["rw"] & wire.CHECKSUM or io["checksum"] != checksum(request.user, request.data):
            return server.answer(request, error=errno.EBADMSG)
        if not request.is_io_read:
            return super().serve(server, request)
        at = io["sector"] * 512
        data = bytes(self.disk[at:at + request.desc[2]])
        self.returns(server, request, data, trailer(request.user, data))

    def returns(self, server: Server, request, data: bytes, sum_: bytes) -> None:
        server.answer(request, data, more=sum_)


def returning(change, times: int = SENT) -> type[Honest]:
    """Returns what `change` makes of data and checksum of the user's first reads."""
    class Returns(Checks):
        left = times

        def returns(self, server, request, data, sum_):
            if request.at_spot and self.left:
                self.left -= 1
                data, sum_ = change(request, data, sum_)
            super().returns(server, request, data, sum_)
    return Returns


def saying(error: int, times: int, base: type[Honest] = Checks) -> type[Honest]:
    """Answers the user's first requests with an error."""
    class Says(base):
        left = times

        def spot(self, server, request):
            if not self.left:
                return self.serve(server, request)
            self.left -= 1
            server.answer(request, error=error)
    return Says


def uses(wanted: str, errors: str, options: str = ON, use=Victim.read, **what):
    """Maps with the options and uses the disk: with this result, and these numbers of errors."""
    def victim(v: Victim) -> None:
        v.options = options
        v.must_map().fail_fast()
        said = use(v, **what)
        assert said == wanted, f"{said} for {wanted}"
        count = v.attribute("ibnbd/checksum_errors")
        assert count == errors, f"checksum_errors: {count} for {errors}"
        assert v.read(SHORT) == "OK", "the next read"
        assert v.tell("paths") == "1 path", "the client has connected again"
    return victim


def flip(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 0x80])


CHANGES = {
    "data": lambda request, data, sum_: (flip(data), sum_),
    "checksum": lambda request, data, sum_: (data, flip(sum_)),
    "checksum of another sector": lambda request, data, sum_: (
        data, trailer(request.user[:8] + bytes(8) + request.user[16:], data)),
    "no checksum": lambda request, data, sum_: (data, b""),
    **{f"checksum of {length} bytes": lambda request, data, sum_, length=length: (data, (sum_ * 4)[:length])
       for length in (1, 3, 5, 8, 12)},
}

for length in (SHORT, LONG):
    lie(f"checksums, read of {length}", Checks, uses("OK", "0 0", length=length))
    for name, change in CHANGES.items():
        lie(f"wrong checksums, {name}, read of {length}, once", returning(change, 1), uses("OK", "0 1", length=length))
        lie(f"wrong checksums, {name}, read of {length}", returning(change),
            uses("EILSEQ", f"0 {SENT}", length=length))
    lie(f"checksums, write of {length}", Checks, uses("OK", "0 0", use=Victim.write, length=length))
for name, use in (("read", Victim.read), ("write", Victim.write)):
    lie(f"damaged on the way, {name}, once", saying(errno.EBADMSG, 1), uses("OK", "1 0", use=use))
    lie(f"damaged on the way, {name}", saying(errno.EBADMSG, SENT), uses("EILSEQ", f"{SENT} 0", use=use))
    # A session has disks with checksums and without.
    lie(f"damaged on the way, {name}, without checksums, once", saying(errno.EBADMSG, 1, Honest),
        uses("OK", "1 0", options="", use=use))
    lie(f"damaged on the way, {name}, without checksums", saying(errno.EBADMSG, SENT, Honest),
        uses("EILSEQ", f"{SENT} 0", options="", use=use))
    lie(f"damaged on the way, {name}, without extensions", like(saying(errno.EBADMSG, 1, Honest), extensions=False),
        uses("EIO", "0 0", options="", use=use))
    lie(f"error of the disk's, {name}", saying(errno.EILSEQ, 1), uses("EILSEQ", "0 0", use=use))


class Times(Checks):
    """Notes when the user's requests come, and says of each that it was damaged."""

    def __init__(self):
        super().__init__()
        self.times: list[float] = []

    def spot(self, server, request):
        self.times.append(time.monotonic())
        if len(self.times) > SENT:
            return self.serve(server, request)
        server.answer(request, error=errno.EBADMSG)


def paused(server: Server) -> str | None:
    times = server.behaviour.times
    gaps = [after - before for before, after in zip(times, times[1:])][:SENT - 1]
    if len(gaps) != SENT - 1:
        return f"{len(times)} requests"
    # Of the first one, nobody knows how long it takes.
    return None if gaps[1] >= 0.01 and gaps[2] >= 0.1 else f"sent again after {gaps}"


def sees_pauses(v: Victim) -> None:
    uses("EILSEQ", f"{SENT} 0", use=Victim.write)(v)
    v.tell("order 0")


lie("damaged on the way, and sent again after a while", Times, sees_pauses, paused)


def slowly(seconds: float) -> type[Honest]:
    """Says of the user's requests that they were damaged, each time after so long."""
    class Slow(Checks):
        def spot(self, server, request):
            server.later(seconds, lambda: server.answer(request, error=errno.EBADMSG))
    return Slow


def limited(v: Victim) -> None:
    """A write times out at least once in each attempt, and as often as the limit says before the last."""
    v.options = ON
    v.must_map()
    v.attribute("queue/io_timeout", "1000")
    v.attribute("ibnbd/io_timeout_limit", "3")
    said = v.write()
    assert said == "ETIMEDOUT", f"{said} from a write that times out in each attempt"


lie("damaged on the way, later than the limit of all attempts", slowly(2.6), limited)


class Together(Checks):
    """The checksum in the message that invalidates the key."""

    key = False

    def returns(self, server, request, data, sum_):
        if not request.wants_invalidation:
            return super().returns(server, request, data, sum_)
        server.put_data(request, data)
        kind = wire.IMM_ANSWER_INV if self.key else wire.IMM_ANSWER_SAME_KEY
        more = server.rkey(request.chunk) if self.key else b""
        request.by.pair.send_inv(request.desc[1], body(request.chunk, kind=kind, more=more + sum_))


lie("checksums in answers that invalidate", Together, uses("OK", "0 0", length=LONG))
lie("checksums in answers that invalidate, with a key", like(Together, key=True, flags=wire.NEW_RKEY),
    uses("OK", "0 0", length=LONG))
lie("checksums with keys", like(Checks, flags=wire.NEW_RKEY), uses("OK", "0 0", length=LONG))


class Unasked(Honest):
    """Sends checksums that nobody has asked for."""

    def spot(self, server, request):
        if not request.is_io_read:
            return self.serve(server, request)
        server.answer(request, bytes(request.desc[2]), more=b"\x11\x22\x33\x44")


for length in (SHORT, LONG):
    lie(f"checksum not asked for, read of {length}", Unasked, uses("OK", "0 0", options="", length=length))


def refused(v: Victim) -> None:
    v.options = ON
    said = v.map()
    assert said == "ENOTSUP", f"map_device: {said}"


lie("no checksums", Honest, refused)
lie("no checksums, and no extensions", like(extensions=False), refused)


def not_asked_for(v: Victim) -> None:
    said = v.map()
    assert said == "EPROTO", f"map_device: {said}"


lie("a device whose requests are to have checksums, unasked", like(opened={"details_flags": 4}), not_asked_for)


class Loses(Checks):
    """Loses the session after the first read, and then knows no checksums."""

    lost = False
    # Requests of the user that come in the next session.
    served = None

    def connect(self, server, connection, asked):
        connection.accept(server.acceptance(session_gen=server.paths))

    def open_rsp(self):
        self.opened = {"details_flags": 0} if self.lost else Checks.opened
        return super().open_rsp()

    def spot(self, server, request):
        if server.paths > 1:
            self.served = request
        elif self.lost:
            # Sent before the client has seen the second answer to the first read, which it may take for that to this
            # one.
            return request.by.disconnect()
        self.lost = True
        server.answer(request, bytes(request.desc[2]), more=trailer(request.user, bytes(request.desc[2])))
        return server.end(request)


def loses(v: Victim) -> None:
    v.options = ON
    v.must_map().fail_fast()
    v.read()
    said = v.read()
    assert said in ("EIO", "ETIMEDOUT"), f"{said} from a server that knows no checksums any more"
    v.tell("order 0")


def not_served(server: Server) -> str | None:
    return None if server.behaviour.served is None else "the client does without checksums"


lie("checksums until the server has restarted", Loses, loses, not_served)
