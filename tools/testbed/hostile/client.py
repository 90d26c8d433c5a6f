# SPDX-License-Identifier: GPL-2.0
"""A client that can send anything: by default it follows the protocol, without any driver, and
each step can be changed or omitted.

`Party` is a session with a path, step by step; `RawClient` is one that is set up, with a
connection for I/O."""

import errno
import os

from . import wire
from .verbs import Connection, Home, Message, Rejected
# Those who use a client speak of operations and modes.
from .wire import (DISCARD, FLUSH, FUA, MIGRATION, NOUNMAP, PREFLUSH, READ, RO, RW, SECURE_ERASE, SYNC,  # noqa: F401
                   WRITE, WRITE_ZEROES)

ADDRESS = "10.0.1.1"
# Memory that reads return to.
RETURNS = 1 << 20
# The last one only to clients that take it.
ANSWERS = wire.IMM_ANSWER, wire.IMM_ANSWER_INV, wire.IMM_ANSWER_SAME_KEY


def refusal(private: bytes) -> int:
    """The errno of a refusal, 0 if that has none of ours."""
    if len(private) < 56 or wire.CONN_RSP.field("magic").get(private) != wire.MAGIC:
        return 0
    return -wire.CONN_RSP.field("errno").get(private) % 65536


class Party:
    """A session with one path, which is set up step by step."""

    def __init__(self, address: str = ADDRESS, name: str = "raw", port: int = wire.PORT, cid_num: int = 2,
                 epoch: int = 0, session: bytes | None = None, source: str | None = None):
        self.address, self.name, self.port, self.cid_num, self.source = address, name, port, cid_num, source
        self.path, self.session = os.urandom(16), session or os.urandom(16)
        # With a number for its attempts it knows the extensions.
        self.extensions = {"ext": 1, "epoch": epoch} if epoch else {}
        # How many reads of its memory it allows.
        self.reads = 0
        self.home: Home | None = None
        self.connections: dict[int, Connection] = {}
        self.others: list[Connection] = []
        self.accepted: dict = {}
        self.acceptances: list[dict] = []
        self.chunks: list[tuple[int, int]] = []
        # Of the last answer.
        self.trailer = b""

    # Connecting.

    def request(self, cid: int, /, **fields) -> bytes:
        """The private data of a connection request."""
        return wire.CONN_REQ.pack(**{"cid": cid, "cid_num": self.cid_num, "path": self.path, "session": self.session,
                                     **self.extensions, **fields})

    def _home(self, device: str) -> Home:
        if self.home is None:
            self.home = Home(device, RETURNS)
        return self.home

    def resolve(self) -> Connection:
        connection = Connection.resolve(self._home, self.address, self.port, self.source)
        connection.reads = self.reads
        self.others.append(connection)
        return connection

    def connect(self, cid: int, /, private: bytes | None = None, **fields) -> Connection:
        """Connects one connection; Rejected if the server refuses it."""
        connection = self.resolve()
        connection.ask(self.request(cid, **fields) if private is None else private)
        answer = connection.answered()
        connection.establish()
        if cid not in self.connections:
            self.connections[cid] = connection
        self.acceptances.append(wire.CONN_RSP.unpack(answer))
        if cid == 0 or not self.accepted:
            self.accepted = self.acceptances[-1]
        return connection

    def refused(self, cid: int, /, private: bytes | None = None, **fields) -> int:
        """Tries to connect one; the errno that the server refuses it with, 0 if it does not."""
        try:
            self.connect(cid, private, **fields)
        except Rejected as rejected:
            return refusal(rejected.private)
        return 0

    def connect_all(self) -> None:
        for cid in range(self.cid_num):
            self.connect(cid)

    # The server's answer.

    @property
    def depth(self) -> int:
        return self.accepted["queue_depth"]

    @property
    def chunk_size(self) -> int:
        if self.has_slots:
            return self.accepted["slot_size"] * wire.SLOT_UNIT
        return self.accepted["max_io_size"] + self.accepted["max_hdr_size"]

    @property
    def has_slots(self) -> bool:
        return bool(self.accepted["ext"] and self.accepted["more_flags"] & wire.RSP_SLOTS)

    @property
    def window(self) -> int:
        """How many requests may be in flight on a connection, if they may be capsules; else 0."""
        return wire.window(self.accepted)

    @property
    def service(self) -> Connection:
        return self.connections[0]

    @property
    def io(self) -> Connection:
        return self.connections[1]

    # Names and chunks.

    def info_req(self, **fields) -> bytes:
        return wire.INFO_REQUEST.pack(**{"name": self.name.encode(), **fields})

    def introduce(self, message: bytes | None = None) -> None:
        """Sends the name, and takes the places of the chunks in."""
        self.service.pair.send(self.info_req() if message is None else message)
        answer = self._message(self.service)
        self.chunks = []
        for addr, key, length in wire.info_descs(answer.data):
            self.chunks += [(addr + at, key) for at in range(0, length, self.chunk_size)]

    @staticmethod
    def _message(connection: Connection) -> Message:
        """The next one that is no immediate alone."""
        while True:
            message = connection.next()
            if message.imm is None:
                return message

    def set_up(self) -> "Party":
        self.connect_all()
        self.introduce()
        return self

    # Requests.

    def write_chunk(self, by: Connection, chunk: int, at: int, data: bytes, offset: int) -> int:
        """Writes into a chunk, with an immediate that says the request header is at `offset`."""
        addr, key = self.chunks[chunk]
        return by.pair.write_imm(data, wire.request_imm(self.depth, chunk, offset), addr + at, key)

    def heartbeat(self, seconds: float = 20) -> None:
        """Sees that the path goes on."""
        self.service.pair.write_imm(b"", wire.imm(wire.IMM_HEARTBEAT, 0))
        while True:
            imm = self.service.next(seconds).imm
            if imm is not None and imm >> 28 == wire.IMM_HEARTBEAT_ACK:
                return

    def answer(self, by: Connection, chunk: int, seconds: float = 20) -> int:
        """Waits for the answer to the request of a chunk; its errno."""
        while True:
            message = by.next(seconds)
            if message.imm is None:
                continue
            imm = wire.Immediate.of(message.imm)
            if imm.kind == wire.IMM_HEARTBEAT:
                by.pair.write_imm(b"", wire.imm(wire.IMM_HEARTBEAT_ACK, 0))
            if imm.kind not in ANSWERS or imm.chunk != chunk:
                continue
            self._new_key(message)
            return imm.errno

    def _new_key(self, message: Message) -> None:
        """Takes the key in that comes with an answer, and what is behind it."""
        imm = wire.Immediate.of(message.imm)
        new_key = self.accepted["flags"] & wire.NEW_RKEY and imm.kind != wire.IMM_ANSWER_SAME_KEY
        self.trailer = message.data[wire.RKEY.length if new_key else 0:]
        if new_key:
            key = wire.RKEY.unpack(message.data)
            chunk = imm.chunk
            assert key["type"] == wire.RKEY_RSP and key["chunk"] == chunk, key
            self.chunks[chunk] = (self.chunks[chunk][0], key["key"])

    def answer_any(self, by: Connection, seconds: float = 20) -> int:
        """Waits for the next answer, of whatever chunk; its errno."""
        while True:
            message = by.next(seconds)
            imm = None if message.imm is None else wire.Immediate.of(message.imm)
            if imm is not None and imm.kind in ANSWERS:
                self._new_key(message)
                return imm.errno

    def read_header(self, want: int, user: bytes, **fields) -> bytes:
        memory = self.home.memory
        if not want:
            return wire.READ_NOTHING.pack(**{"usr_len": len(user), **fields})
        return wire.READ_REQUEST.pack(**{"usr_len": len(user), "addr": memory.base, "key": memory.rkey, "len": want,
                                         **fields})

    def post_read(self, by: Connection, chunk: int, user: bytes, want: int, **fields) -> int:
        """Sends a request for data; `fields` change its header, `offset` where that is said to be."""
        at = 0 if self.has_slots else want
        offset = fields.pop("offset", at + len(user))
        return self.write_chunk(by, chunk, at, user + self.read_header(want, user, **fields), offset)

    def post_write(self, by: Connection, chunk: int, user: bytes, data: bytes = b"", **fields) -> int:
        offset = fields.pop("offset", len(data) + len(user))
        header = wire.WRITE_REQUEST.pack(**{"usr_len": len(user), **fields})
        return self.write_chunk(by, chunk, 0, data + user + header, offset)

    def post_fetch(self, by: Connection, chunk: int, user: bytes, length: int, **fields) -> int:
        """Sends a request whose data the server is to fetch."""
        memory = self.home.memory
        offset = fields.pop("offset", len(user))
        header = wire.FETCH_REQUEST.pack(**{"usr_len": len(user), "addr": memory.base, "key": memory.rkey, "len": length,
                                            **fields})
        return self.write_chunk(by, chunk, offset - len(user), user + header, offset)

    def returned(self, length: int) -> bytes:
        return self.home.memory.get(0, length)

    # The block device.

    def ask(self, user: bytes, want: int, chunk: int = 0) -> tuple[int, bytes]:
        """An administrative message: errno and answer."""
        self.home.memory.put(0, bytes(want))
        self.post_read(self.service, chunk, user, want)
        return self.answer(self.service, chunk), self.returned(want)

    def sess_info(self, **fields) -> tuple[int, bytes]:
        return self.ask(wire.SESS_INFO_REQ.pack(**fields), wire.SESS_INFO_ANSWER.length)

    def try_open(self, name: str | bytes, mode: int = RW, flags: int = 0, **fields) -> tuple[int, dict]:
        raw = name.encode() if isinstance(name, str) else name
        message = wire.OPEN_REQ.pack(**{"dev_name": raw, "access_mode": mode, "flags": flags, **fields})
        error, answer = self.ask(message, wire.OPEN_ANSWER_SHORT)
        return error, {} if error else wire.OPEN_ANSWER.unpack(answer.ljust(wire.OPEN_ANSWER.length, b"\0"))

    def open(self, name: str, mode: int = RW, flags: int = 0) -> int:
        """Returns the number of the device."""
        error, answer = self.try_open(name, mode, flags)
        if error:
            raise OSError(error, os.strerror(error))
        return answer["device_id"]

    def close_device(self, device: int) -> int:
        self.post_write(self.service, 0, wire.CLOSE_REQ.pack(device_id=device))
        return self.answer(self.service, 0)

    @staticmethod
    def io_header(device: int, op: int, sector: int = 0, length: int = 4096, **fields) -> bytes:
        return wire.IO_REQ.pack(**{"device_id": device, "sector": sector, "rw": op, "bytes": length, **fields})

    def post_io(self, device: int, op: int, sector: int = 0, length: int = 4096, data: bytes | None = None,
                chunk: int = 1, by: Connection | None = None) -> None:
        by = by or self.io
        if data is None:
            data = b"\xA5" * length if op & 0xFF == WRITE else b""
        header = self.io_header(device, op, sector, length)
        if op & 0xFF in (READ, FLUSH):
            self.post_read(by, chunk, header, length if op & 0xFF == READ else 0)
        else:
            self.post_write(by, chunk, header, data)

    def submit(self, device: int, op: int, sector: int = 0, length: int = 4096, data: bytes | None = None,
               chunk: int = 1) -> str:
        """One I/O; returns the name of the error."""
        self.post_io(device, op, sector, length, data, chunk)
        error = self.answer(self.io, chunk)
        return errno.errorcode.get(error, "OK")

    # The end.

    def wait_closed(self, seconds: float = 30) -> None:
        """Waits until the server has ended the path."""
        for connection in self.connections.values():
            connection.wait_closed(seconds)

    def leave(self, quietly: bool = False) -> None:
        """Ends what there is, and gives it back."""
        for connection in self.others:
            connection.close(quietly)
        self.others, self.connections = [], {}
        if self.home is not None:
            self.home.close()
            self.home = None

    def __enter__(self) -> "Party":
        return self

    def __exit__(self, *_):
        self.leave()


class RawClient(Party):
    """One that is set up, as scenarios use it."""

    def __init__(self, address: str, session: str, port: int = wire.PORT):
        super().__init__(address, session, port)
        self.set_up()
        self.sess_info()

    def close(self, device: int) -> int:
        return self.close_device(device)
