# SPDX-License-Identifier: GPL-2.0
"""A server of one disk in memory, which follows the protocol.

The methods of `Honest` are the steps of the protocol; lies replace some of them."""

import os
import time
import traceback
from dataclasses import dataclass

import pyverbs.cm_enums as ce
from pyverbs.pyverbs_error import PyverbsError

from . import wire
from .verbs import Closed, Connection, Home, Listener

SECTORS = 4096
# The range that users read and write; the kernel reads other blocks of a new disk.
SPOT = 2048


@dataclass
class Request:
    """A request of the client, as it stood in its chunk."""

    by: Connection
    chunk: int
    offset: int
    header: dict
    user: bytes
    data: bytes
    # It asks for the server's times.
    timed: bool = False
    in_capsule: bool = False

    @property
    def is_read(self) -> bool:
        return self.header["type"] == wire.READ_HDR

    @property
    def desc(self) -> tuple[int, int, int] | None:
        """Address, key and length of the memory that the client wants data in, or fetched from."""
        if self.header["type"] == wire.WRITE_HDR or not self.header["sg_cnt"]:
            return None
        return self.header["addr"], self.header["key"], self.header["len"]

    @property
    def wants_invalidation(self) -> bool:
        return self.desc is not None and bool(self.header["flags"] & wire.NEED_INVAL)

    @property
    def kind(self) -> int:
        return wire.IO_REQ.field("type").get(self.user)

    @property
    def io(self) -> dict:
        return wire.IO_REQ.unpack(self.user)

    @property
    def is_io_read(self) -> bool:
        return self.kind == wire.IO and self.io["rw"] & 0xFF == wire.READ

    @property
    def at_spot(self) -> bool:
        return self.kind == wire.IO and self.io["sector"] == SPOT

    @property
    def is_io_write(self) -> bool:
        return self.kind == wire.IO and self.io["rw"] & 0xFF == wire.WRITE


class Honest:
    """The steps of a server, each of which can be replaced."""

    depth, max_io_size, max_hdr_size, flags = 16, 61440, 4096, 0
    # In place of chunks, if it is not 0.
    slot_size = 0
    # The window for capsules, if it is not 0; those of further connections are to differ.
    window_units, different = 0, False
    # As a server of ours, or as one of mainline.
    extensions = True
    # Whether requests may ask for times.
    times = False
    device_id = 7

    def __init__(self):
        self.disk = bytearray(SECTORS * 512)

    # Fields that are to be other ones.
    acceptance: dict = {}
    sess_info: dict = {}
    opened: dict = {}

    def connect(self, server: "Server", connection: Connection, asked: dict) -> None:
        connection.own_reads = 1 if self.slot_size else 0
        more = {"flags": self.flags | 9 << 24} if self.different and asked["cid"] else {}
        connection.accept(server.acceptance(**{**self.acceptance, **more}))

    def info(self, server: "Server", connection: Connection) -> None:
        connection.pair.send(server.tamper(server.info_rsp()))

    def request(self, server: "Server", request: Request) -> None:
        step = {wire.SESS_INFO: self.introduce, wire.OPEN: self.open, wire.IO: self.io,
                wire.DISCOVER: self.discover}.get(request.kind)
        if step:
            step(server, request)
        else:
            server.answer(request)

    def introduce(self, server: "Server", request: Request) -> None:
        server.answer(request, wire.SESS_INFO_ANSWER.pack(**self.sess_info))

    def open_rsp(self) -> bytes:
        return wire.OPEN_ANSWER.pack(**{"device_id": self.device_id, "nsectors": SECTORS, "identity": 4711, "details": 1,
                                        "details_physical": 512, "io_min": 512, "max_segments": 128, **self.opened})

    def open(self, server: "Server", request: Request) -> None:
        server.answer(request, self.open_rsp())

    def discover(self, server: "Server", request: Request) -> None:
        server.answer(request, wire.discovered([wire.listed(b"lie", nsectors=SECTORS)]))

    def io(self, server: "Server", request: Request) -> None:
        (self.spot if request.at_spot else self.serve)(server, request)

    def spot(self, server: "Server", request: Request) -> None:
        """I/O of the client's user."""
        self.serve(server, request)

    def fetch(self, server: "Server", request: Request) -> None:
        """Gets the data of a write that is to be fetched."""
        request.data = server.fetch(request)

    def serve(self, server: "Server", request: Request) -> None:
        if request.header["type"] == wire.FETCH_HDR:
            self.fetch(server, request)
        at = request.io["sector"] * 512
        if request.is_io_read:
            server.answer(request, bytes(self.disk[at:at + request.desc[2]]))
        else:
            if request.is_io_write:
                self.disk[at:at + len(request.data)] = request.data
            server.answer(request)

    def durable_seen(self, server: "Server", number: int) -> None:
        """The client has confirmed that object `number` is durable."""

    def downtime_seen(self, server: "Server", payload: int) -> None:
        """The client has confirmed how long the server expects to be away."""

    def end_of_answer(self, request: Request, more: bytes) -> bytes:
        """The bytes after an answer and its key."""
        return more

    def fence(self, server: "Server", connection: Connection, payload: int) -> None:
        connection.pair.write_imm(b"", wire.imm(wire.IMM_FENCE_DONE, payload))

    def heartbeat(self, server: "Server", connection: Connection) -> None:
        connection.pair.write_imm(b"", wire.imm(wire.IMM_HEARTBEAT_ACK, 0))


class Server:
    """Listens at a port, and does what its behaviour says."""

    def __init__(self, address: str, port: int, behaviour: Honest):
        self.behaviour = behaviour
        self.listener = Listener(address, port)
        self.chunk_size = behaviour.slot_size or behaviour.max_io_size + behaviour.max_hdr_size
        # Reading a header at the end of the last chunk reads a little beyond it.
        self.home = Home(self.listener.device, behaviour.depth * self.chunk_size + 64)
        self.run = os.urandom(16)
        # Those that there are or were; the last one of each number.
        self.all: list[Connection] = []
        self.former: list[Connection] = []
        self.cons: dict[int, Connection] = {}
        self.paths = 0
        self.requests: list[Request] = []
        # The last request for a connection, and the last message without immediate.
        self.asked = self.heard = b""
        self.ended = 0
        # How many of the connections of the last path are established.
        self.established = 0
        self.mistakes: list[str] = []
        self.later_on: list[tuple[float, object]] = []

    # The parts that a fuzzer changes.

    def tamper(self, message: bytes) -> bytes:
        return message

    def tamper_imm(self, imm: int) -> int:
        return imm

    # Parts of answers.

    def acceptance(self, **fields) -> bytes:
        b = self.behaviour
        values = {"queue_depth": b.depth, "max_io_size": b.max_io_size, "max_hdr_size": b.max_hdr_size, "flags": b.flags | b.window_units << 24}
        if b.extensions:
            values |= {"ext": 1, "session_gen": 1, "server_run": self.run}
        if b.times:
            values |= {"more_flags": wire.RSP_TIMES}
        if b.slot_size:
            values |= {"more_flags": wire.RSP_SLOTS, "slot_size": b.slot_size // wire.SLOT_UNIT}
        return self.tamper(wire.CONN_RSP.pack(**{**values, **fields}))

    def info_rsp(self) -> bytes:
        return wire.info_rsp([(self.home.memory.base + n * self.chunk_size, self.home.memory.rkey, self.chunk_size)
                              for n in range(self.behaviour.depth)])

    def imm(self, connection: Connection, number: int, data: bytes = b"") -> int:
        number = self.tamper_imm(number)
        if data or self.behaviour.slot_size:
            return connection.pair.send_imm(self.tamper(data), number)
        return connection.pair.write_imm(b"", number)

    def rkey(self, chunk: int, /, **fields) -> bytes:
        """The message that comes with each answer, if keys do."""
        if not self.behaviour.flags & wire.NEW_RKEY:
            return b""
        return wire.RKEY.pack(**{"chunk": chunk, "key": self.home.memory.rkey, **fields})

    def end(self, request: Request, error: int = 0, kind: int | None = None, by: Connection | None = None,
            chunk: int | None = None, more: bytes = b"") -> None:
        """Sends the last message of an answer."""
        chunk = request.chunk if chunk is None else chunk
        if kind is None:
            kind = wire.IMM_ANSWER_INV if request.wants_invalidation else wire.IMM_ANSWER
        self.imm(by or request.by, wire.answer_imm(chunk, error, kind), self.rkey(chunk) + more)

    def put_data(self, request: Request, data: bytes) -> None:
        addr, key, length = request.desc
        request.by.pair.write(self.tamper(data.ljust(length, b"\0")[:length]), addr, key)

    def fetch(self, request: Request) -> bytes:
        """Reads the data of a write from the client's memory."""
        addr, key, length = request.desc
        number = request.by.pair.read(addr, key, length)
        request.by.pair.wait_sent(number, 20)
        return request.by.pair.outbox.get(request.by.pair.place - (length + 63) // 64 * 64, length)

    def invalidate(self, request: Request) -> None:
        if request.wants_invalidation:
            request.by.pair.send_inv(request.desc[1])

    def answer(self, request: Request, data: bytes = b"", error: int = 0, more: bytes = b"") -> None:
        """A whole answer, as it should be, with `more` at its end."""
        if request.is_read and request.desc and not error:
            self.put_data(request, data)
        self.invalidate(request)
        self.end(request, error, more=self.behaviour.end_of_answer(request, more))

    def later(self, seconds: float, what) -> None:
        self.later_on.append((time.monotonic() + seconds, what))

    # Taking things in.

    def step(self) -> bool:
        """Does what there is to do; whether there was anything."""
        busy = self._events()
        for connection in list(self.all):
            busy |= connection.pair.poll()
            while connection.pair.messages:
                self._guarded(self._message, connection, connection.pair.messages.popleft())
                busy = True
        now = time.monotonic()
        due = [entry for entry in self.later_on if entry[0] <= now]
        self.later_on = [entry for entry in self.later_on if entry[0] > now]
        for _, what in due:
            self._guarded(what)
        return busy or bool(due)

    def _guarded(self, what, *arguments) -> None:
        """A client that does not want to hear it is not one of the server's troubles; what else
        goes wrong is a mistake in the case."""
        try:
            what(*arguments)
        except (Closed, PyverbsError):
            pass
        except Exception as error:  # noqa: BLE001: the end of the case reports it
            traceback.print_exc()
            self.mistakes.append(f"{type(error).__name__}: {error}")

    def _events(self) -> bool:
        event = self.listener.event(self.home)
        if event is None:
            return False
        kind, private, connection = event
        if kind == ce.RDMA_CM_EVENT_CONNECT_REQUEST:
            if connection is None:
                return True
            self.asked = private[:wire.CONN_REQ.length]
            asked = wire.CONN_REQ.unpack(private)
            if asked["cid"] == 0:
                self._new_path()
            self.all.append(connection)
            self.cons[asked["cid"]] = connection
            self._guarded(self.behaviour.connect, self, connection, asked)
        elif kind == ce.RDMA_CM_EVENT_ESTABLISHED:
            self.established += 1
        elif kind == ce.RDMA_CM_EVENT_DISCONNECTED:
            self.ended += 1
        return True

    def disconnect_once_established(self, connection: Connection) -> None:
        """Messages may arrive before.  A connection that is not established is not disconnected, but left without a
        word."""
        if self.established:
            return connection.disconnect()
        return self.later(0.02, lambda: self.disconnect_once_established(connection))

    def _new_path(self) -> None:
        """The client comes back.  What it left last may be of interest still, not what it left before."""
        self.paths += 1
        self.established = 0
        for connection in self.former:
            connection.close()
            self.all.remove(connection)
        self.former = list(self.all)

    def _message(self, connection: Connection, message) -> None:
        if message.imm is None:
            self.heard = message.data
            return self._guarded(self.behaviour.info, self, connection)
        imm = wire.Immediate.of(message.imm)
        if imm.kind == wire.IMM_REQUEST:
            request = self._capsule(connection, imm, message.data) if message.data else self._parse(connection, imm)
            self.requests.append(request)
            return self._guarded(self.behaviour.request, self, request)
        if imm.kind == wire.IMM_HEARTBEAT:
            return self._guarded(self.behaviour.heartbeat, self, connection)
        if imm.kind == wire.IMM_FENCE:
            return self._guarded(self.behaviour.fence, self, connection, imm.payload)
        if imm.kind == wire.IMM_DURABLE_SEEN:
            return self._guarded(self.behaviour.durable_seen, self, imm.payload)
        if imm.kind == wire.IMM_DOWNTIME:
            return self._guarded(self.behaviour.downtime_seen, self, imm.payload)
        return None

    @staticmethod
    def _header(raw: bytes) -> tuple[dict, bool]:
        """The header of a request, and whether that asks for times."""
        kind = wire.WRITE_REQUEST.field("type").get(raw)
        timed = bool(kind & wire.TIMED)
        kind &= ~wire.TIMED
        layout = wire.READ_REQUEST if kind in (wire.READ_HDR, wire.FETCH_HDR) else wire.WRITE_REQUEST
        return {**layout.unpack(raw.ljust(layout.length, b"\0")), "type": kind}, timed

    def _capsule(self, connection: Connection, imm: wire.Immediate, message: bytes) -> Request:
        chunk, offset = imm.request(self.behaviour.depth)
        header, timed = self._header(message[offset:])
        if offset != header["usr_len"]:
            raise ValueError(f"a capsule with {offset} bytes before its header, of {header['usr_len']}")
        return Request(connection, chunk, offset, header, message[:offset], message[wire.CAPSULE_HEADERS:], timed, True)

    def _parse(self, connection: Connection, imm: wire.Immediate) -> Request:
        chunk, offset = imm.request(self.behaviour.depth)
        base = chunk * self.chunk_size
        header, timed = self._header(self.home.memory.get(base + offset, wire.READ_REQUEST.length))
        length = offset - header["usr_len"]
        user = self.home.memory.get(base + length, header["usr_len"])
        data = self.home.memory.get(base, length) if header["type"] == wire.WRITE_HDR else b""
        return Request(connection, chunk, offset, header, user, data, timed)

    def requests_that(self, which) -> list[Request]:
        return [request for request in self.requests if which(request)]

    def close(self) -> None:
        for connection in self.all:
            connection.close()
        self.listener.close()
        self.home.close()


def serve(servers: list[Server], end: str) -> None:
    """Says that they are ready, lets them work until the file `end` is there, and prints the mistakes."""
    print("ready", flush=True)
    while not os.path.exists(end):
        if not any([server.step() for server in servers]):
            time.sleep(0.01)
    print([mistake for server in servers for mistake in server.mistakes])
