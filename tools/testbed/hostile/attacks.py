# SPDX-License-Identifier: GPL-2.0
"""What a hostile client does, and what the server is to make of it.

An attack is a function; it ends, or says what was wrong.  Those who are beside the
point, the server's kernel and honest clients, are looked at by the scenario."""

import errno
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from . import wire
from .client import Party, refusal
from .verbs import Closed, Failed, Rejected

# What the scenario exports: memory; memory whose requests take a while; others.
DISK, SLOW, OTHER, COMMON = "hostile", "slow", "other", "common"
SLOW_SECONDS = 0.5


@dataclass(frozen=True)
class Attack:
    name: str
    run: Callable[[], None]


ATTACKS: list[Attack] = []


def attack(name: str, run) -> None:
    ATTACKS.append(Attack(name, run))


def named(name: str):
    def register(run):
        attack(name, run)
        return run
    return register


def opened(party: Party, name: str, mode: int = wire.RW) -> int:
    """Opens a disk, as soon as the session that had it before has gone."""
    deadline = time.monotonic() + 30
    while True:
        error, answer = party.try_open(name, mode)
        if error != errno.EPERM or time.monotonic() > deadline:
            assert error == 0, f"open: {code(error)}"
            return answer["device_id"]
        time.sleep(0.05)


class Shared:
    """A session for attacks that are answered, as long as it lives."""

    party: Party | None = None
    device = 0

    @classmethod
    def take(cls) -> tuple[Party, int]:
        if cls.party is not None:
            try:
                # It was left alone for longer than the server may have waited.
                cls.party.heartbeat()
            except (Closed, TimeoutError):
                cls.drop()
        if cls.party is None:
            cls.party = Party(name="shared").set_up()
            cls.device = opened(cls.party, COMMON)
        return cls.party, cls.device

    @classmethod
    def drop(cls) -> None:
        if cls.party is not None:
            cls.party.leave()
            cls.party = None


def in_session(run):
    """Has run(party, device) use the session, which is to go on after that."""
    def whole():
        try:
            party, device = Shared.take()
            run(party, device)
            assert party.submit(device, wire.READ) == "OK"
        except BaseException:
            Shared.drop()
            raise
    return whole


def code(number: int) -> str:
    return errno.errorcode.get(number, str(number)) if number else "OK"


# Connecting: each request is refused with that error, or taken.


def asks(wanted: str, private: bytes | None = None, cid: int = 0, **fields):
    def run():
        with Party() as party:
            said = code(party.refused(cid, private, **fields))
            assert said == wanted, f"{said} for {wanted}"
    return run


CONNECTS = [
    *[("magic", value, "ECONNRESET") for value in (0, 1, 0x1BBC, 0x1BBE, 0xBD1B, 0xFFFF)],
    *[("version", value, "ECONNRESET") for value in (0, 0x0100, 0x01FF, 0x0300, 0x0002, 0xFFFF)],
    ("version", 0x02FF, "OK"),
    *[("cid_num", value, "ECONNRESET") for value in (0, wire.MAX_CONNECTIONS + 1, 0x8000, 0xFFFF)],
    ("cid_num", 1, "OK"),
    *[("cid", value, "ECONNRESET") for value in (2, 3, 0x7FFF, 0xFFFF)],
    *[("recon_cnt", value, "OK") for value in (0, 0xFFFF)],
    *[("first_conn", value, "ENXIO") for value in (0, 2, 0xFE)],
    *[("first_conn", value, "OK") for value in (1, 3, 0xFF)],
    ("path", bytes(16), "OK"), ("path", b"\xff" * 16, "OK"), ("session", bytes(16), "OK"),
    ("cma", 0xFFFF, "OK"), ("rest", 0xFFFFFFFF, "OK"), ("reserved", 0xFF, "OK"),
    *[("ext", value, "OK") for value in (0, 1, 2, 0xFF)],
]
for name, value, wanted in CONNECTS:
    shown = value if isinstance(value, int) else value[:2].hex()
    attack(f"connect with {name}={shown}", asks(wanted, **{name: value}))
# Zeroes follow: with its numbers alone it is the first connection of no session.
for length, wanted in ((0, "ECONNRESET"), (1, "ECONNRESET"), (4, "ECONNRESET"), (8, "ECONNRESET"),
                       (12, "ENXIO"), (28, "ENXIO")):
    attack(f"connect with {length} bytes", asks(wanted, private=wire.CONN_REQ.pack(cid=0, cid_num=2)[:length]))


def extends(epoch: int, known: bool, **fields):
    def run():
        with Party() as party:
            assert party.refused(0, **{"ext": 1, "epoch": epoch, **fields}) == 0
            assert (party.accepted["ext"] == 1) == known, party.accepted
    return run


for epoch, known in ((0, False), (1, True), (wire.MAX_EPOCH, True), (wire.MAX_EPOCH + 1, False), (0xFFFFFFFF, False)):
    attack(f"connect with epoch {epoch:#x}", extends(epoch, known))
attack("connect with unknown flags of extensions", extends(1, True, ext_flags=0xFE))
attack("connect with another version of extensions", extends(1, False, ext=2))


@named("connections in any order")
def _():
    with Party(cid_num=4) as party:
        for cid in (3, 1, 0, 2):
            assert party.refused(cid) == 0
        party.introduce()
        party.heartbeat()


@named("connections that do not belong to their path")
def _():
    with Party(epoch=5) as party:
        party.connect(0)
        for wanted, fields in (("ECONNRESET", {"cid": 0}), ("ECONNRESET", {"cid": 1, "cid_num": 3}),
                               ("ECONNRESET", {"cid": 1, "ext": 0}), ("ECONNRESET", {"cid": 1, "epoch": 4}),
                               ("EEXIST", {"cid": 1, "path": os.urandom(16)})):
            said = code(party.refused(9, **fields))
            assert said == wanted, f"{fields}: {said} for {wanted}"
        party.connect(1)
        party.introduce()
        assert code(party.refused(9, cid=0)) == "ECONNRESET"
        party.heartbeat()
        # A newer attempt has the old one closed.
        assert code(party.refused(9, cid=0, epoch=6)) == "ECONNRESET"
        party.wait_closed()


@named("connect twice at once")
def _():
    with Party() as party:
        both = [party.resolve(), party.resolve()]
        for connection in both:
            connection.ask(party.request(0))
        answers = []
        for connection in both:
            try:
                connection.answered()
                answers.append(0)
            except Rejected:
                answers.append(1)
        assert sorted(answers) == [0, 1], answers


# Half-open set-ups: those who sit there keep nobody else out.


def comes_in(seconds: float = 15) -> None:
    """An honest client gets its session; what earlier ones had may take a while to be free."""
    deadline = time.monotonic() + seconds
    while True:
        with Party(name="honest") as honest:
            try:
                honest.set_up()
                assert honest.sess_info()[0] == 0
                return
            except Rejected as rejected:
                if time.monotonic() > deadline:
                    why = code(refusal(rejected.private))
                    raise AssertionError(f"an honest client is refused: {why}") from rejected
        time.sleep(1)


def sits(cid_num: int, count: int = 1):
    """So many paths of so many connections each have their first connection, and no more."""
    def run():
        sitting = [Party(cid_num=cid_num) for _ in range(count)]
        try:
            for party in sitting:
                # Refused or taken, that is the server's choice.
                party.refused(0)
            comes_in()
        finally:
            for party in sitting:
                party.leave()
    return run


for cid_num in (740, wire.MAX_CONNECTIONS):
    attack(f"half-open with {cid_num} connections", sits(cid_num))
attack("half-open, thirty of two connections", sits(2, 30))
attack("half-open, eight of 740 connections", sits(740, 8))


def leaves_at(step: str, quietly: bool):
    """Goes at a step of the set-up, with and without a word."""
    def run():
        party = Party(cid_num=3)
        try:
            if step == "resolve":
                return party.resolve()
            if step == "request":
                return party.resolve().ask(party.request(0))
            party.connect(0)
            if step == "first connection":
                return None
            party.connect(1)
            party.connect(2)
            if step == "INFO":
                return party.service.pair.send(party.info_req())
            party.introduce()
            if step == "OPEN":
                return party.post_read(party.service, 0, wire.OPEN_REQ.pack(dev_name=DISK.encode(), access_mode=1), 56)
            if step == "write":
                device = opened(party, SLOW)
                for chunk in range(party.depth):
                    party.post_io(device, wire.WRITE, 8 * chunk, chunk=chunk)
        finally:
            party.leave(quietly)
        return None
    return run


for step in ("resolve", "request", "first connection", "all connections", "INFO", "OPEN", "write"):
    for quietly in (False, True):
        attack(f"{'gone' if quietly else 'disconnected'} after {step}", leaves_at(step, quietly))

# The name of the session.


def introduces(message: bytes | Callable[[Party], bytes], closed: bool = True, cid: int = 0, connections: int = 2):
    def run():
        with Party(cid_num=2) as party:
            for number in range(connections):
                party.connect(number)
            data = message(party) if callable(message) else message
            by = party.connections[cid]
            by.pair.send(data)
            if closed:
                return party.wait_closed()
            party._message(by)
            party.heartbeat()
    return run


def info(**fields) -> bytes:
    return wire.INFO_REQUEST.pack(**{"name": b"raw", **fields})


for kind in (1, 2, 4, 0x7FFF, 0xFFFF):
    attack(f"INFO_REQ of type {kind}", introduces(info(type=kind)))
for length in (0, 1, 2, 271):
    attack(f"INFO_REQ of {length} bytes", introduces(info()[:length]))
attack("INFO_REQ of 273 bytes", introduces(info() + b"x"))
attack("INFO_REQ of 16 KiB", introduces(info().ljust(16384, b"x")))
for name in (b"", b"A" * 255, b"a/b", b"a.b", b"..", b"a b", b"a\tb", b"a\x7fb", b"a\nb", b"\xff\xfe", b"\xc3",
             b"\xed\xa0\x80", "a\u2028b".encode()):
    attack(f"session named {name[:8]!r}", introduces(info(name=name)))
attack("session named 254 bytes", introduces(info(name=b"B" * 254), closed=False))
attack("INFO_REQ with reserved bytes", introduces(info(reserved=b"\xff" * 15), closed=False))
attack("INFO_REQ before all connections", introduces(info(), connections=1))
attack("INFO_REQ on a connection for I/O", introduces(info(), cid=1))


@named("INFO_REQ twice")
def _():
    with Party().set_up() as party:
        party.service.pair.send(party.info_req())
        party.wait_closed()


@named("INFO_REQ twice at once")
def _():
    with Party() as party:
        party.connect_all()
        party.service.pair.send(party.info_req())
        party.service.pair.send(party.info_req())
        party.wait_closed()


@named("name of a session that is there")
def _():
    with Party(name="mine").set_up() as party, Party(name="mine") as thief:
        thief.connect_all()
        thief.service.pair.send(thief.info_req())
        thief.wait_closed()
        party.heartbeat()


@named("requests before INFO_REQ")
def _():
    with Party() as party:
        party.connect_all()
        party.io.pair.write_imm(b"", wire.request_imm(party.depth, 0, 8))
        party.wait_closed()


@named("heartbeats before INFO_REQ")
def _():
    """They are answered.  As they take the receive for the name, that ends the path."""
    with Party() as party:
        party.connect_all()
        party.heartbeat()
        party.service.pair.send(party.info_req())
        party.wait_closed()


# Immediates.


def imms(closed: bool, *numbers: int, cid: int = 0, epoch: int = 0, message: bytes | None = None):
    def run():
        with Party(epoch=epoch).set_up() as party:
            for number in numbers:
                pair = party.connections[cid].pair
                pair.write_imm(b"", number) if message is None else pair.send_imm(message, number)
            party.wait_closed() if closed else party.heartbeat()
    return run


for cid in (0, 1):
    unknown = [wire.imm(kind, payload) for kind in range(16) for payload in (0, 1, 5 << 19 | 3, (1 << 28) - 1)
               if kind not in (wire.IMM_REQUEST, wire.IMM_FENCE, wire.IMM_HEARTBEAT)]
    attack(f"immediates that are not a client's, connection {cid}", imms(False, *unknown, cid=cid))
    attack(f"the same in messages, connection {cid}", imms(False, *unknown[:40], cid=cid, message=b""))
attack("a heartbeat on a connection for I/O", imms(False, wire.imm(8, 0), cid=1))
attack("immediate in a message that is too long", imms(True, wire.imm(12, 0), message=b"x" * 64))
attack("fence without extensions", imms(True, wire.fence_imm(1)))
attack("fence on a connection for I/O", imms(True, wire.fence_imm(1), cid=1, epoch=5))
attack("fence about the path that carries it", imms(True, wire.fence_imm(5), epoch=5))
attack("fence of attempt 0, which there is none of", imms(False, wire.fence_imm(0), epoch=5))
attack("fences in any number", imms(True, *[wire.fence_imm(1, True)] * 2000, epoch=5))


@named("fences with drain, answered")
def _():
    with Party(epoch=9).set_up() as party:
        party.service.pair.write_imm(b"", wire.fence_imm(8, True))
        while (imm := wire.Immediate.of(party.service.next().imm)).kind != wire.IMM_FENCE_DONE:
            pass
        assert imm.payload == 1 << 27 | 8


def request_at(chunk, offset):
    """A request immediate without a request, for any chunk and offset."""
    def run():
        with Party().set_up() as party:
            party.io.pair.write_imm(b"", wire.request_imm(party.depth, chunk(party), offset(party)))
            party.wait_closed()
    return run


attack("request at the end of a chunk", request_at(lambda p: 0, lambda p: p.chunk_size))
attack("request beyond a chunk", request_at(lambda p: 0, lambda p: (1 << 28 - wire.chunk_bits(p.depth)) - 1))


@named("request for a chunk beyond the last one")
def _():
    with Party().set_up() as party:
        # Where the number of chunks is a power of two there is none that fits.
        if party.depth & party.depth - 1:
            party.io.pair.write_imm(b"", wire.request_imm(party.depth, party.depth, 8))
            party.wait_closed()


# Requests: each is answered with an error, and the path goes on.


def answered(wanted: str, post, chunk: int = 1):
    def run(party: Party, device: int) -> None:
        post(party, device)
        said = code(party.answer(party.io, chunk))
        assert said in wanted.split("/"), f"{said} for {wanted}"
    return in_session(run)


def reads(wanted: str, want: int = 4096, user: bytes | None = None, **fields):
    return answered(wanted, lambda p, d: p.post_read(p.io, 1, p.io_header(d, wire.READ, 0, want) if user is None else user,
                                                     want, **fields))


def writes(wanted: str, user: bytes | None = None, data: bytes = b"", **fields):
    return answered(wanted, lambda p, d: p.post_write(p.io, 1, p.io_header(d, wire.WRITE) if user is None else user,
                                                      data, **fields))


for kind in (0, 1, 4, 5, 0xFF, 0x7FFF, 0xFFFF):
    attack(f"request of type {kind}", reads("EINVAL", type=kind))
for count in (2, 3, 128, 0xFFFF):
    attack(f"read with {count} descriptors", reads("EINVAL", sg_cnt=count))
attack("read with data, without descriptor", reads("EINVAL", sg_cnt=0))
for length in (0, 4097, 1 << 31, 0xFFFFFFFF):
    attack(f"read into {length:#x} bytes for 4096", reads("EINVAL", len=length))
attack("read into memory that wraps", reads("EINVAL", addr=(1 << 64) - 1))
attack("read with unknown flags", reads("OK", flags=0xFFFE))
for length in (0, 1, 2, 3, 4, 23):
    attack(f"user header of {length} bytes", answered("EINVAL", lambda p, d, n=length: p.post_read(
        p.io, 1, p.io_header(d, wire.READ)[:n], 4096)))
attack("user header of 24 bytes", answered("OK", lambda p, d: p.post_read(p.io, 1, p.io_header(d, wire.READ)[:24], 4096)))
attack("user header of 512 bytes", answered("OK", lambda p, d: p.post_read(
    p.io, 1, p.io_header(d, wire.READ).ljust(wire.MAX_USER_HEADER, b"\xff"), 4096)))
for length in (513, 4000, 8192):
    attack(f"user header of {length} bytes", answered("EMSGSIZE", lambda p, d, n=length: p.post_read(
        p.io, 1, p.io_header(d, wire.READ).ljust(n, b"\0"), 4096)))
for length in (4129, 8192, 0xFFFF):
    attack(f"user header of {length} bytes where there are 4128", writes("EINVAL/EMSGSIZE", data=bytes(4096),
                                                                         usr_len=length))
for left in (1, 2, 3):
    attack(f"request header {left} bytes before the end", answered("EINVAL", lambda p, d, n=left: p.write_chunk(
        p.io, 1, 0, b"x", p.chunk_size - n)))
attack("request header of a read cut by the end", answered("EINVAL", lambda p, d: p.write_chunk(
    p.io, 1, p.chunk_size - 8, wire.READ_NOTHING.pack(sg_cnt=1), p.chunk_size - 8)))
attack("request of nothing", answered("EINVAL", lambda p, d: p.io.pair.write_imm(
    b"", wire.request_imm(p.depth, 1, 0))))


def zero_chunk(party: Party, device: int) -> None:
    """Nothing that others have left there counts."""
    party.write_chunk(party.io, 1, 0, bytes(64), 0)


attack("request of zeroes", answered("EINVAL", zero_chunk))


def breaks(post):
    """Requests after which the connection cannot go on, as memory is not what they say."""
    def run():
        with Party().set_up() as party:
            post(party, opened(party, DISK))
            party.wait_closed(60)
    return run


attack("read into memory that is not there", breaks(lambda p, d: p.post_read(
    p.io, 1, p.io_header(d, wire.READ), 4096, addr=4096)))
for key in (0, 1, 0xFFFFFFFF):
    attack(f"read into memory with key {key:#x}", breaks(lambda p, d, k=key: p.post_read(
        p.io, 1, p.io_header(d, wire.READ), 4096, key=k)))
attack("read with a key that cannot be invalidated", breaks(lambda p, d: p.post_read(
    p.io, 1, p.io_header(d, wire.READ), 4096, flags=wire.NEED_INVAL)))
attack("message on a connection for I/O", breaks(lambda p, d: p.io.pair.send(b"x")))
attack("empty message on a connection for I/O", breaks(lambda p, d: p.io.pair.send(b"")))

# The block device.


def asked(wanted: str, user: bytes, want: int = 36):
    def run(party: Party, _: int) -> None:
        said = code(party.ask(user, want)[0])
        assert said in wanted.split("/"), f"{said} for {wanted}"
    return in_session(run)


for kind in (1, 3, 6, 0xFF, 0x100, 0x7FFF, 0xFFFF):
    attack(f"block device message of type {kind}", asked("EINVAL", wire.SESS_INFO_REQ.pack(type=kind)))
for want in (1, 4, 35):
    attack(f"SESS_INFO with room for {want} bytes", asked("EMSGSIZE", wire.SESS_INFO_REQ.pack(), want))
attack("SESS_INFO with room for 4096 bytes", asked("OK", wire.SESS_INFO_REQ.pack(), 4096))
attack("SESS_INFO that is short", asked("EINVAL", wire.SESS_INFO_REQ.pack()[:4]))


@named("SESS_INFO of any version")
def _():
    with Party().set_up() as party:
        for version in (0, 1, 2, 3, 127, 128, 255):
            error, answer = party.sess_info(ver=version)
            assert error or wire.SESS_INFO_ANSWER.unpack(answer)["ver"] == min(version, 2)


def opens(wanted: str, name: bytes, **fields):
    def run(party: Party, _: int) -> None:
        said = code(party.try_open(name, **fields)[0])
        assert said in wanted.split("/"), f"{said} for {wanted}"
    return in_session(run)


for mode in (3, 4, 127, 128, 255):
    attack(f"OPEN with access mode {mode}", opens("EINVAL", COMMON.encode(), mode=mode))
attack("OPEN with flags that are not there", opens("OK", COMMON.encode(), flags=255))
attack("OPEN with reserved bytes", opens("OK", COMMON.encode(), reserved=0xFFFFFF, pad=0xFFFF))
for name, wanted in ((b"", "EINVAL"), (b"A" * 255, "EINVAL/ENAMETOOLONG"), (b"A" * 254, "ENOENT/ENAMETOOLONG"),
                     (b"a b", "EINVAL"), (b"a\nb", "EINVAL"), (b"\xff", "EINVAL"), (b"..", "EINVAL/EACCES/EPERM/EXDEV"),
                     (b"../etc/passwd", "EINVAL/EACCES/EPERM/EXDEV"), (b"x/../../etc/passwd", "EINVAL/EACCES/EPERM/EXDEV"),
                     (b"nothing", "ENOENT"), (b"null", "ENOTBLK"), (b"/", "ENOTBLK/EISDIR/EINVAL"),
                     (b".", "ENOTBLK/EISDIR/EINVAL"), (b"a/" * 127, "ENOENT/ENOTDIR")):
    attack(f"OPEN of {name[:12]!r}, {len(name)} bytes", opens(wanted, name))


@named("OPEN that is short")
def _():
    with Party().set_up() as party:
        opened(party, DISK)
        message = wire.OPEN_REQ.pack(dev_name=DISK.encode(), access_mode=1)
        for length in (4, 6, 7, 260, 263):
            said = code(party.ask(message[:length], 56)[0])
            assert said in ("EINVAL", "OK"), said
        for want in (1, 55):
            assert code(party.ask(message, want)[0]) == "EMSGSIZE"
        assert party.ask(message, 8192)[0] == 0


@named("OPEN in another mode")
def _():
    with Party().set_up() as party:
        opened(party, DISK)
        assert code(party.try_open(DISK, wire.RO)[0]) == "EPERM"
        assert code(party.try_open(DISK, wire.MIGRATION)[0]) == "EPERM"


@named("OPEN by many names")
def _():
    """One device is opened once, whatever it is called."""
    names = [DISK, "/" + DISK, "./" + DISK, "//" + DISK] + ["./" * number + DISK for number in range(2, 60)]
    with Party().set_up() as party:
        answers = [party.try_open(name, wire.RO) for name in names]
        found = {answer["device_id"] for error, answer in answers if not error}
        assert len(found) == 1, f"{len(found)} devices were made of one"


@named("OPEN in any number at once")
def _():
    with Party().set_up() as party:
        opened(party, DISK)
        message = wire.OPEN_REQ.pack(dev_name=DISK.encode(), access_mode=1)
        for _ in range(4):
            for chunk in range(party.depth):
                party.post_read(party.service, chunk, message, 56)
            for chunk in range(party.depth):
                assert party.answer_any(party.service) == 0


@named("CLOSE as a read")
def _():
    """What is left of earlier requests in a chunk is nobody's business."""
    with Party().set_up() as party:
        device = opened(party, DISK)
        party.submit(device, wire.WRITE, data=b"secret!!" * 512, chunk=2)
        party.home.memory.put(0, bytes(4096))
        party.post_read(party.io, 2, wire.CLOSE_REQ.pack(device_id=12345), 4096)
        party.answer(party.io, 2)
        assert b"secret" not in party.returned(4096), "stale bytes of the chunk were sent"


@named("CLOSE of what is not open")
def _():
    with Party().set_up() as party:
        device = opened(party, DISK)
        for other in (0, 1, device - 1, device + 1, 0x7FFFFFFF, 0xFFFFFFFF):
            assert party.close_device(other % (1 << 32)) == 0
        assert party.submit(device, wire.READ) == "OK"


@named("CLOSE while I/O is under way")
def _():
    with Party().set_up() as party:
        device = opened(party, SLOW)
        for chunk in range(2, party.depth):
            party.post_io(device, wire.WRITE, 8 * chunk, chunk=chunk)
        assert party.close_device(device) == 0
        assert party.submit(device, wire.READ) == "ENOTCONN"


def io(wanted: str, op: int, *, sector: int = 0, length: int = 4096, want: int = 0, data: bytes | None = None, **fields):
    """An I/O as a read of `want` bytes, or with data as a write."""
    def post(party: Party, device: int) -> None:
        header = party.io_header(device, op, sector, length, **fields)
        if data is None:
            party.post_read(party.io, 1, header, want)
        else:
            party.post_write(party.io, 1, header, data)
    return answered(wanted, post)


for op in (6, 7, 9, 127, 128, 255):
    attack(f"operation {op}", io("ENOTSUP", op, want=4096))
for flag in range(12, 32):
    attack(f"operation with flag {flag}", io("ENOTSUP", wire.WRITE | 1 << flag, data=bytes(4096)))
for name, op in (("write", wire.WRITE), ("discard", wire.DISCARD), ("secure erase", wire.SECURE_ERASE),
                 ("zeroes", wire.WRITE_ZEROES)):
    attack(f"{name} as a read", io("EINVAL", op, want=4096))
attack("read as a write", io("EINVAL", wire.READ, data=bytes(4096)))
attack("flush with data", io("EINVAL", wire.FLUSH, length=0, want=4096))
attack("flush with a length", io("EINVAL", wire.FLUSH))
attack("discard with data", io("EINVAL", wire.DISCARD, data=bytes(4096)))
for flag in (wire.FUA, wire.PREFLUSH, wire.FUA | wire.PREFLUSH):
    for op in (wire.READ, wire.DISCARD):
        attack(f"operation {op} with flags {flag:#x}", io("EINVAL", op | flag, want=4096 if op == wire.READ else 0,
                                                         data=b"" if op == wire.DISCARD else None))
for length in (0, 1, 511, 513, 4095, 4097, 8192, 1 << 31, 0xFFFFFFFF, 0xFFFFFE00):
    attack(f"write of 4096 that says {length:#x}", io("EINVAL", wire.WRITE, length=length, data=bytes(4096)))
    attack(f"read of 4096 that says {length:#x}", io("EINVAL", wire.READ, length=length, want=4096))
for sector in (1 << 24, (1 << 31) - 1, 1 << 32, (1 << 55) - 1, (1 << 63) - 8, (1 << 64) - 8, (1 << 64) - 1):
    attack(f"read at sector {sector:#x}", io("EIO", wire.READ, sector=sector, want=4096))
    attack(f"discard at sector {sector:#x}", io("EIO", wire.DISCARD, sector=sector, data=b""))
for length in (0, 1, 0xFFFFFFFF):
    attack(f"discard of {length:#x} bytes", io("EINVAL", wire.DISCARD, length=length, data=b""))
attack("zeroes of all that fits 32 bits", io("EIO", wire.WRITE_ZEROES, length=0xFFFFFE00, data=b""))
for prio in (1, 0x2000, 0x4007, 0x6000, 0x7FFF, 0x8000, 0xFFFF):
    attack(f"write with priority {prio:#x}", io("OK/EINVAL", wire.WRITE, data=bytes(4096), prio=prio))

# Chunks and their keys.


@named("two requests in one chunk")
def _():
    with Party().set_up() as party:
        device = opened(party, SLOW)
        party.post_io(device, wire.READ)
        party.post_io(device, wire.READ)
        party.wait_closed()


@named("one chunk by both connections")
def _():
    with Party().set_up() as party:
        device = opened(party, SLOW)
        party.post_io(device, wire.READ)
        party.post_io(device, wire.READ, by=party.service)
        party.wait_closed()


def on_disk(device_name: str, sector: int, length: int) -> bytes:
    """What a session of its own finds there."""
    with Party(name="look").set_up() as party:
        device = opened(party, device_name, wire.RO)
        assert party.submit(device, wire.READ, sector, length) == "OK"
        return party.returned(length)


def rewrites(length: int, other_path: bool = False):
    """Changes a write in its chunk while the disk has it."""
    def run():
        with Party(name="rewriter").set_up() as party, Party(name="second", session=os.urandom(16)).set_up() as second:
            device = opened(party, SLOW)
            before, after = b"\x11" * length, b"\x22" * length
            by = (second if other_path else party).io
            party.post_io(device, wire.WRITE, 0, length, before, chunk=3)
            time.sleep(SLOW_SECONDS / 3)
            addr, key = party.chunks[3]
            evil = after + party.io_header(device, wire.WRITE, 512, length) + wire.WRITE_REQUEST.pack(usr_len=32)
            taken = True
            try:
                by.pair.wait_sent(by.pair.write(evil, addr, key))
            except (Failed, Closed):
                taken = False
            if other_path:
                assert not taken, "another session's chunk could be written to"
            if not taken and not other_path:
                # Its own path is gone.  What the disk has got is what was sent.
                time.sleep(SLOW_SECONDS)
            else:
                assert party.answer(party.io, 3) == 0
        assert on_disk(SLOW, 0, length) == before, "the disk has got what came later"
        assert on_disk(SLOW, 512, length) != after, "the header was read twice"
    return run


attack("write changed on its way to the disk, 4 KiB", rewrites(4096))
attack("write changed on its way to the disk, 16 KiB", rewrites(16384))
attack("write changed on its way to the disk, 60 KiB", rewrites(61440))
attack("write changed from another session, 4 KiB", rewrites(4096, True))
attack("write changed from another session, 60 KiB", rewrites(61440, True))


def refused(post):
    """A request of the device for memory of the server's that the device refuses."""
    def run():
        with Party(name="one").set_up() as party:
            device = opened(party, DISK)
            assert party.submit(device, wire.WRITE, 0, 61440, b"\x33" * 61440) == "OK"
            try:
                party.io.pair.wait_sent(post(party))
            except (Failed, Closed):
                return
            raise AssertionError("taken")
    return run


def stale_key(party: Party) -> int:
    """Writes by the key that a chunk had before the last request."""
    old = party.chunks[4]
    device = opened(party, DISK)
    assert party.submit(device, wire.WRITE, 0, 61440, bytes(61440), chunk=4) == "OK"
    assert party.chunks[4][1] != old[1], "the chunk has the key that it had"
    return party.io.pair.write(b"x", *old)


attack("key of an earlier request", refused(stale_key))
attack("chunk is read", refused(lambda p: p.io.pair.read(*p.chunks[1], 64)))
attack("write before a chunk", refused(lambda p: p.io.pair.write(b"x" * 8, p.chunks[1][0] - 8, p.chunks[1][1])))
attack("write beyond a chunk", refused(lambda p: p.io.pair.write(b"x" * 8, p.chunks[1][0] + p.chunk_size, p.chunks[1][1])))
for key in (0, 0xFFFFFFFF):
    attack(f"write by key {key:#x}", refused(lambda p, k=key: p.io.pair.write(b"x", p.chunks[1][0], k)))


@named("chunk that another session has")
def _():
    with Party(name="one").set_up() as victim, Party(name="two").set_up() as thief:
        try:
            thief.io.pair.wait_sent(thief.io.pair.write(b"x" * 64, *victim.chunks[1]))
        except (Failed, Closed):
            victim.heartbeat()
            return
        raise AssertionError("a session can write to the chunks of another one")


@named("chunk of an earlier path")
def _():
    with Party(name="one", epoch=1) as party:
        party.set_up()
        old = party.chunks[1]
        party.leave()
        time.sleep(0.5)
        with Party(name="two").set_up() as thief:
            try:
                thief.io.pair.wait_sent(thief.io.pair.write(b"x" * 64, *old))
            except (Failed, Closed):
                return
    raise AssertionError("the chunks of a path that was closed can be written to")


@named("own chunk's key invalidated")
def _():
    """Whoever breaks his own chunk has a broken chunk, and the server an answer or an end for it."""
    with Party().set_up() as party:
        device = opened(party, DISK)
        party.io.pair.send_inv(party.chunks[1][1])
        time.sleep(0.2)
        try:
            party.post_io(device, wire.READ)
            party.answer(party.io, 1)
        except (Closed, TimeoutError):
            pass


# Floods.


@named("flood of heartbeats")
def _():
    """More than are answered end the path."""
    with Party().set_up() as party:
        try:
            for _ in range(1000):
                party.service.pair.write_imm(b"", wire.imm(wire.IMM_HEARTBEAT, 0))
                party.service.pair.poll()
                party.service.pair.messages.clear()
            party.heartbeat()
        except Closed:
            pass
    comes_in()


@named("flood of unknown immediates")
def _():
    with Party().set_up() as party:
        for number in range(1000):
            party.io.pair.write_imm(b"", wire.imm(12, number))
        party.heartbeat()


@named("flood of requests that make no sense")
def _():
    with Party().set_up() as party:
        for _ in range(20):
            for chunk in range(1, party.depth):
                party.write_chunk(party.io, chunk, 0, bytes(16), 0)
            for _ in range(1, party.depth):
                assert party.answer_any(party.io) == errno.EINVAL
        party.heartbeat()


@named("flood of connections that are refused")
def _():
    for _ in range(30):
        asks("ECONNRESET", magic=1)()


@named("flood of names that are refused")
def _():
    for _ in range(15):
        introduces(info(name=b"a.b"))()


@named("flood of devices that are not there")
def _():
    with Party().set_up() as party:
        for _ in range(50):
            assert code(party.try_open("nothing")[0]) == "ENOENT"


@named("answers are not taken")
def _():
    """A client without receives: the server waits, and the others do not."""
    with Party(name="deaf") as party:
        party.cid_num = 2
        party.set_up()
        device = opened(party, DISK)
        pair = party.io.pair
        pair.receive = lambda number: None
        for round in range(pair.receives // (party.depth - 2) + 2):
            for chunk in range(2, party.depth):
                party.post_io(device, wire.READ, chunk=chunk)
            try:
                for _ in range(2, party.depth):
                    party.answer_any(party.io, 0.5)
            except TimeoutError:
                break
        with Party(name="honest").set_up() as honest:
            assert honest.submit(opened(honest, OTHER), wire.READ) == "OK"


@named("queue pair that does not acknowledge")
def _():
    """The queue pair is gone, the connection is not."""
    with Party(name="mute").set_up() as party:
        device = opened(party, DISK)
        party.post_io(device, wire.READ)
        party.io.pair.break_off()
        with Party(name="honest").set_up() as honest:
            assert honest.submit(opened(honest, OTHER), wire.READ) == "OK"
