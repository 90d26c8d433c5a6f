# SPDX-License-Identifier: GPL-2.0
"""The layouts of all messages and immediates; see Documentation/protocol.md.

Pure: nothing here needs a device."""

import struct
from dataclasses import dataclass, field

MAGIC, VERSION, PORT = 0x1BBD, 0x0200, 1234
MAX_CONNECTIONS, SERVICE_QUEUE_DEPTH, MAX_USER_HEADER, MAX_HEADERS = 4096, 512, 512, 4096
MAX_EPOCH = (1 << 27) - 1

# Types of transport messages and of immediates.
INFO_REQ, INFO_RSP, WRITE_HDR, READ_HDR, RKEY_RSP = range(5)
FETCH_HDR = 12
IMM_REQUEST, IMM_ANSWER, IMM_ANSWER_INV, IMM_FENCE, IMM_FENCE_DONE, IMM_NOTICE, IMM_ANSWER_SAME_KEY = range(7)
IMM_DURABLE, IMM_HEARTBEAT, IMM_HEARTBEAT_ACK, IMM_DURABLE_SEEN, IMM_ANSWERS, IMM_NOP, IMM_DOWNTIME = range(7, 14)
# In an immediate of the type DOWNTIME: it is the client's answer.
DOWNTIME_SEEN = 1 << 27
NEED_INVAL, NEW_RKEY = 1, 2
# Added to the type of a request that asks for times; says in an acceptance that requests may.
TIMED, RSP_TIMES = 1 << 15, 1
# Says in an acceptance that the path has slots, whose size is a multiple of this.
RSP_SLOTS, SLOT_UNIT = 2, 4096
# Flags of extensions: immediates travel in messages; the client takes answers that leave the key of a chunk as it was,
# several in a message, and those in the message that invalidates its own; it takes slots; it sends capsules.
EXT_SEND_IMM, EXT_SAME_KEY, EXT_MORE_ANSWERS, EXT_INV_ANSWERS, EXT_SLOTS = 1 << 0, 1 << 2, 1 << 4, 1 << 5, 1 << 6
EXT_CAPSULES = 1 << 7
# A flag of the byte before: the client takes DOWNTIME.
FIRST_CONN, EXT_DOWNTIME = 1, 2
# The data of a capsule begins here.
CAPSULE_HEADERS = 64

# Types of block device messages, access modes, operations and their flags.
SESS_INFO, SESS_INFO_RSP, OPEN, OPEN_RSP, IO, CLOSE, DISCOVER, DISCOVER_RSP = range(8)
RO, RW, MIGRATION = range(3)
READ, WRITE, FLUSH, DISCARD, SECURE_ERASE, WRITE_ZEROES = range(6)
SYNC, FUA, PREFLUSH, NOUNMAP, CHECKSUM = 1 << 8, 1 << 9, 1 << 10, 1 << 11, 1 << 12
# Flags of OPEN.
ONLY_KNOWN, CHECKSUMS = 2, 4


@dataclass(frozen=True)
class Field:
    """Some bytes of a message: a number, or text if it is longer than 8."""

    name: str
    at: int
    size: int

    @property
    def is_number(self) -> bool:
        return self.size <= 8

    def put(self, message: bytearray, value: int | bytes) -> None:
        """Numbers are cut to the field's size."""
        if isinstance(value, int):
            value = (value % (1 << 8 * self.size)).to_bytes(self.size, "little")
        if len(value) > self.size:
            raise ValueError(f"{self.name}: {len(value)} bytes for {self.size}")
        message[self.at:self.at + self.size] = value.ljust(self.size, b"\0")

    def get(self, message: bytes) -> int | bytes:
        raw = bytes(message[self.at:self.at + self.size])
        return int.from_bytes(raw, "little") if self.is_number else raw


@dataclass(frozen=True)
class Layout:
    """A message: its length, its fields, and what is in them unless said otherwise."""

    name: str
    length: int
    fields: tuple[Field, ...]
    usual: dict = field(default_factory=dict, compare=False)

    def field(self, name: str) -> Field:
        for candidate in self.fields:
            if candidate.name == name:
                return candidate
        raise KeyError(f"{self.name} has no field {name}")

    def pack(self, **values: int | bytes) -> bytes:
        message = bytearray(self.length)
        for name, value in {**self.usual, **values}.items():
            self.field(name).put(message, value)
        return bytes(message)

    def unpack(self, message: bytes) -> dict:
        if len(message) < self.length:
            raise ValueError(f"{self.name}: {len(message)} bytes for {self.length}")
        return {item.name: item.get(message) for item in self.fields}


def _layout(name: str, length: int, fields: str, **usual) -> Layout:
    """Fields are written as "name@offset:size"."""
    parts = []
    for text in fields.split():
        label, _, place = text.partition("@")
        at, _, size = place.partition(":")
        parts.append(Field(label, int(at), int(size)))
    return Layout(name, length, tuple(parts), usual)


CONN_REQ = _layout(
    "connection request", 56,
    "cma@0:2 magic@2:2 version@4:2 cid@6:2 cid_num@8:2 recon_cnt@10:2 path@12:16 session@28:16 "
    "first_conn@44:1 ext@45:1 ext_flags@46:1 reserved@47:1 epoch@48:4 rest@52:4",
    magic=MAGIC, version=VERSION, recon_cnt=1, first_conn=1)
CONN_RSP = _layout(
    "connection answer", 56,
    "magic@0:2 version@2:2 errno@4:2 queue_depth@6:2 max_io_size@8:4 max_hdr_size@12:4 flags@16:4 ext@20:1 "
    "more_flags@22:1 slot_size@23:1 session_gen@24:4 server_run@28:16 rest@44:8",
    magic=MAGIC, version=VERSION)
INFO_REQUEST = _layout("INFO_REQ", 272, "type@0:2 name@2:255 reserved@257:15", type=INFO_REQ)
INFO_HEAD = _layout("INFO_RSP", 8, "type@0:2 sg_cnt@2:2 reserved@4:4", type=INFO_RSP)
DESC = _layout("descriptor", 16, "addr@0:8 key@8:4 len@12:4")
RKEY = _layout("RKEY_RSP", 8, "type@0:2 chunk@2:2 key@4:4", type=RKEY_RSP)
WRITE_REQUEST = _layout("WRITE header", 4, "type@0:2 usr_len@2:2", type=WRITE_HDR)
READ_REQUEST = _layout("READ header", 24, "type@0:2 usr_len@2:2 flags@4:2 sg_cnt@6:2 addr@8:8 key@16:4 len@20:4",
                       type=READ_HDR, sg_cnt=1)
FETCH_REQUEST = _layout("FETCH header", 24, "type@0:2 usr_len@2:2 flags@4:2 sg_cnt@6:2 addr@8:8 key@16:4 len@20:4",
                        type=FETCH_HDR, sg_cnt=1)
READ_NOTHING = _layout("READ header without data", 8, "type@0:2 usr_len@2:2 flags@4:2 sg_cnt@6:2", type=READ_HDR)

SESS_INFO_REQ = _layout("SESS_INFO", 36, "type@0:2 pad@2:2 ver@4:1 reserved@5:8", type=SESS_INFO, ver=2)
SESS_INFO_ANSWER = _layout("SESS_INFO_RSP", 36, "type@0:2 pad@2:2 ver@4:1 reserved@5:8", type=SESS_INFO_RSP, ver=2)
OPEN_REQ = _layout("OPEN", 264, "type@0:2 pad@2:2 access_mode@4:1 flags@5:1 dev_name@6:255 reserved@261:3", type=OPEN)
OPEN_ANSWER = _layout(
    "OPEN_RSP", 88,
    "type@0:2 pad@2:2 device_id@4:4 nsectors@8:8 max_hw_sectors@16:4 max_write_zeroes_sectors@20:4 "
    "max_discard_sectors@24:4 discard_granularity@28:4 discard_alignment@32:4 physical_block_size@36:2 "
    "logical_block_size@38:2 max_segments@40:2 secure_discard@42:2 rotational@44:1 cache_policy@45:1 identity@46:8 "
    "details@56:1 details_flags@57:1 details_physical@60:4 io_min@64:4 io_opt@68:4 max_secure_erase_sectors@72:4 "
    "alignment_offset@76:4 cache_run@80:8",
    type=OPEN_RSP, logical_block_size=512, physical_block_size=512)
OPEN_ANSWER_SHORT = 56
IO_REQ = _layout("IO", 32, "type@0:2 pad@2:2 device_id@4:4 sector@8:8 rw@16:4 bytes@20:4 prio@24:2 padding@26:2 "
                 "checksum@28:4", type=IO)
CLOSE_REQ = _layout("CLOSE", 8, "type@0:2 pad@2:2 device_id@4:4", type=CLOSE)
DISCOVER_REQ = _layout("DISCOVER", 264, "type@0:2 pad@2:2 reserved@4:2 after@6:255 rest@261:3", type=DISCOVER)
DISCOVER_HEAD = _layout("DISCOVER_RSP", 16, "type@0:2 pad@2:2 exports@4:2 portals@6:1 flags@7:1 reserved@8:8",
                        type=DISCOVER_RSP)
# IPv4 unless said otherwise.
PORTAL = _layout("portal", 20, "family@0:1 reserved@1:1 port@2:2 addr@4:16", family=1, port=PORT)
# Its name follows.
LISTED = _layout("export in a list", 12, "name_len@0:1 access_mode@1:1 logical_block_size@2:2 nsectors@4:8",
                 access_mode=1, logical_block_size=512)
# Bytes of the answer that clients of ours have room for, and its flags.
DISCOVER_ROOM, MORE, UNLISTED = 4096, 1, 2


def listed(name: bytes, **fields: int) -> bytes:
    """An export in the answer to DISCOVER."""
    return LISTED.pack(**{"name_len": len(name), **fields}) + name


def discovered(exports: list[bytes], portals: list[bytes] | None = None, /, **fields: int) -> bytes:
    """The answer to DISCOVER."""
    portals = portals or []
    head = DISCOVER_HEAD.pack(**{"exports": len(exports), "portals": len(portals), **fields})
    return b"".join([head, *portals, *exports])


def chunk_bits(queue_depth: int) -> int:
    """The bits of an immediate that the number of a chunk takes."""
    return (queue_depth - 1).bit_length()


def imm(kind: int, payload: int) -> int:
    return (kind & 0xF) << 28 | payload & 0x0FFFFFFF


def request_imm(queue_depth: int, chunk: int, offset: int) -> int:
    """A value that is too long runs over into the next field, as a careless sender's would."""
    return imm(IMM_REQUEST, chunk << 28 - chunk_bits(queue_depth) | offset)


def times(number: bytes) -> tuple[int, int]:
    """How long a request has waited on the server, and how long its disk took, in nanoseconds."""
    halves = (int.from_bytes(number[at:at + 2], "little") for at in (0, 2))
    queue, disk = ((half & 0x7FF) << (half >> 11) for half in halves)
    return queue, disk


def answer_imm(chunk: int, errno: int = 0, kind: int = IMM_ANSWER) -> int:
    return imm(kind, (errno & 0x1FF) << 19 | chunk & 0x7FFFF)


def fence_imm(epoch: int, drain: bool = False) -> int:
    return imm(IMM_FENCE, drain << 27 | epoch)


def downtime_imm(seconds: int, seen: bool = False) -> int:
    return imm(IMM_DOWNTIME, seen * DOWNTIME_SEEN | seconds)


@dataclass(frozen=True)
class Immediate:
    kind: int
    payload: int

    @classmethod
    def of(cls, number: int) -> "Immediate":
        return cls(number >> 28, number & 0x0FFFFFFF)

    @property
    def errno(self) -> int:
        """Of an answer."""
        return self.payload >> 19

    @property
    def chunk(self) -> int:
        """Of an answer."""
        return self.payload & 0x7FFFF

    def request(self, queue_depth: int) -> tuple[int, int]:
        """Chunk and offset of a request."""
        bits = 28 - chunk_bits(queue_depth)
        return self.payload >> bits, self.payload & (1 << bits) - 1


def info_rsp(descs: list[tuple[int, int, int]], **head: int) -> bytes:
    """Descriptors are address, key and length."""
    return INFO_HEAD.pack(**{"sg_cnt": len(descs), **head}) + b"".join(
        DESC.pack(addr=addr, key=key, len=length) for addr, key, length in descs)


def info_descs(message: bytes) -> list[tuple[int, int, int]]:
    count = INFO_HEAD.unpack(message)["sg_cnt"]
    return [struct.unpack_from("<QII", message, INFO_HEAD.length + DESC.length * i) for i in range(count)]


def window(acceptance: dict) -> int:
    """The window for capsules that an acceptance has, 0 without one."""
    units = acceptance["flags"] >> 24 if acceptance["ext"] else 0
    return units * 16 - 3 if units else 0
