# SPDX-License-Identifier: GPL-2.0
"""A client that sends what it likes: the wire protocol by way of user space
verbs, without any driver of ours or of mainline.

Scenarios push it to a guest and run a program there that imports it.  It speaks
to a server without extensions, over one path with one connection for I/O."""

import ctypes
import errno
import os
import socket
import struct
import time
from ctypes import (CFUNCTYPE, POINTER, Structure, byref, c_char_p, c_int, c_uint8, c_uint16, c_uint32, c_uint64,
                    c_void_p, cast, create_string_buffer)

MAGIC, VERSION = 0x1BBD, 0x0200
RO, RW, MIGRATION = range(3)
READ, WRITE, FLUSH, DISCARD, SECURE_ERASE, WRITE_ZEROES = range(6)
SYNC, FUA, PREFLUSH, NOUNMAP = 1 << 8, 1 << 9, 1 << 10, 1 << 11

RDMA_PS_TCP = 0x0106
ADDR_RESOLVED, ROUTE_RESOLVED, ESTABLISHED = 0, 2, 9
IBV_QPT_RC = 2
LOCAL_WRITE, REMOTE_WRITE = 1, 2
WR_RDMA_WRITE_WITH_IMM, WR_SEND = 1, 2
SIGNALED = 2
WC_SEND_DONE, WC_RECV = (0, 1), 1 << 7

# Behind the memory where messages are made: a receive, and what reads return.
RECEIVES, RETURNS, MEMORY = 1 << 20, 3 << 19, 1 << 21
RECEIVE_BYTES, RECEIVE_COUNT = 16384, 16


class Sge(Structure):
    _fields_ = [("addr", c_uint64), ("length", c_uint32), ("lkey", c_uint32)]


class SendWr(Structure):
    _fields_ = [("wr_id", c_uint64), ("next", c_void_p), ("sg_list", POINTER(Sge)), ("num_sge", c_int),
                ("opcode", c_int), ("flags", c_int), ("imm", c_uint32), ("remote_addr", c_uint64), ("rkey", c_uint32),
                ("rest", c_uint8 * 84)]


class RecvWr(Structure):
    _fields_ = [("wr_id", c_uint64), ("next", c_void_p), ("sg_list", POINTER(Sge)), ("num_sge", c_int)]


class Wc(Structure):
    _fields_ = [("wr_id", c_uint64), ("status", c_int), ("opcode", c_int), ("vendor_err", c_uint32),
                ("byte_len", c_uint32), ("imm", c_uint32), ("qp_num", c_uint32), ("src_qp", c_uint32),
                ("flags", c_int), ("pkey_index", c_uint16), ("slid", c_uint16), ("sl", c_uint8), ("bits", c_uint8)]


class QpAttr(Structure):
    _fields_ = [("context", c_void_p), ("send_cq", c_void_p), ("recv_cq", c_void_p), ("srq", c_void_p),
                ("max_send_wr", c_uint32), ("max_recv_wr", c_uint32), ("max_send_sge", c_uint32),
                ("max_recv_sge", c_uint32), ("max_inline", c_uint32), ("type", c_int), ("signal_all", c_int)]


class ConnParam(Structure):
    _fields_ = [("private", c_void_p), ("private_len", c_uint8), ("responder", c_uint8), ("initiator", c_uint8),
                ("flow", c_uint8), ("retry", c_uint8), ("rnr_retry", c_uint8), ("srq", c_uint8), ("qp_num", c_uint32)]


class Event(Structure):
    _fields_ = [("id", c_void_p), ("listen_id", c_void_p), ("event", c_int), ("status", c_int),
                ("private", c_void_p), ("private_len", c_uint8)]


cm = ctypes.CDLL("librdmacm.so.1", use_errno=True)
verbs = ctypes.CDLL("libibverbs.so.1", use_errno=True)
cm.rdma_create_event_channel.restype = c_void_p
for function in (verbs.ibv_alloc_pd, verbs.ibv_create_cq, verbs.ibv_reg_mr):
    function.restype = c_void_p


def check(result, what: str):
    """Functions return 0, or a pointer."""
    if result is None or result < 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


def field(pointer: int, offset: int, kind):
    return cast(pointer + offset, POINTER(kind))[0]


class Connection:
    """A connected queue pair with receives."""

    def __init__(self, address: str, port: int, request: bytes):
        self.channel = c_void_p(check(cm.rdma_create_event_channel(), "event channel"))
        self.id = c_void_p()
        check(cm.rdma_create_id(self.channel, byref(self.id), None, RDMA_PS_TCP), "id")
        name = struct.pack("<H", socket.AF_INET) + struct.pack(">H", port) + socket.inet_aton(address) + bytes(8)
        check(cm.rdma_resolve_addr(self.id, None, create_string_buffer(name, 16), 5000), "address")
        self._event(ADDR_RESOLVED)
        check(cm.rdma_resolve_route(self.id, 5000), "route")
        self._event(ROUTE_RESOLVED)
        self._make_qp()
        param = ConnParam(cast(c_char_p(request), c_void_p), len(request), 0, 0, 0, 7, 7, 0, 0)
        check(cm.rdma_connect(self.id, byref(param)), "connect")
        self.answer = self._event(ESTABLISHED)

    def _event(self, wanted: int) -> bytes:
        event = POINTER(Event)()
        check(cm.rdma_get_cm_event(self.channel, byref(event)), "event")
        got = event.contents
        private = ctypes.string_at(got.private, got.private_len) if got.private else b""
        if got.event != wanted:
            raise ConnectionError(f"event {got.event} for {wanted}, status {got.status}, {private.hex()}")
        check(cm.rdma_ack_cm_event(event), "acknowledge")
        return private

    def _make_qp(self) -> None:
        # The first fields of struct rdma_cm_id.
        context = field(self.id.value, 0, c_uint64)
        pd = c_void_p(check(verbs.ibv_alloc_pd(c_void_p(context)), "pd"))
        self.cq = c_void_p(check(verbs.ibv_create_cq(c_void_p(context), 256, None, None, 0), "cq"))
        attr = QpAttr(None, self.cq, self.cq, None, 64, RECEIVE_COUNT, 1, 1, 0, IBV_QPT_RC, 0)
        check(cm.rdma_create_qp(self.id, pd, byref(attr)), "qp")
        self.qp = c_void_p(field(self.id.value, 24, c_uint64))
        self.memory = create_string_buffer(MEMORY)
        self.base = ctypes.addressof(self.memory)
        mr = check(verbs.ibv_reg_mr(pd, c_void_p(self.base), ctypes.c_size_t(MEMORY), LOCAL_WRITE | REMOTE_WRITE), "mr")
        self.lkey, self.rkey = field(mr, 36, c_uint32), field(mr, 40, c_uint32)

        # struct ibv_context: its device, then the table of operations.
        def operation(number: int, *arguments):
            return CFUNCTYPE(c_int, *arguments)(field(context, 8 + 8 * number, c_uint64))
        self.poll_cq = operation(11, c_void_p, c_int, c_void_p)
        self.post_send = operation(25, c_void_p, c_void_p, c_void_p)
        self.post_recv = operation(26, c_void_p, c_void_p, c_void_p)
        for number in range(RECEIVE_COUNT):
            self.receive(number)

    def receive(self, number: int) -> None:
        sge = Sge(self.base + RECEIVES + number * RECEIVE_BYTES, RECEIVE_BYTES, self.lkey)
        bad = c_void_p()
        if self.post_recv(self.qp, byref(RecvWr(number, None, ctypes.pointer(sge), 1)), byref(bad)):
            raise OSError("post_recv")

    def send(self, message: bytes, opcode: int = WR_SEND, imm: int = 0, addr: int = 0, rkey: int = 0) -> None:
        ctypes.memmove(self.base, message, len(message))
        sge = Sge(self.base, len(message), self.lkey)
        work = SendWr(0, None, ctypes.pointer(sge), 1, opcode, SIGNALED, socket.htonl(imm), addr, rkey)
        bad = c_void_p()
        if self.post_send(self.qp, byref(work), byref(bad)):
            raise OSError("post_send")

    def wait(self, seconds: float = 20) -> tuple[bytes, int]:
        """The next message, and its immediate."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            wc = Wc()
            if self.poll_cq(self.cq, 1, byref(wc)) == 0:
                time.sleep(0.001)
                continue
            if wc.status:
                raise ConnectionError(f"completion with status {wc.status}")
            if wc.opcode & WC_RECV:
                content = ctypes.string_at(self.base + RECEIVES + wc.wr_id * RECEIVE_BYTES, wc.byte_len)
                self.receive(wc.wr_id)
                return content, socket.ntohl(wc.imm)
        raise TimeoutError("no answer")


class RawClient:
    def __init__(self, address: str, session: str, port: int = 1234):
        path, uuid = os.urandom(16), os.urandom(16)
        request = [struct.pack("<HHHHHH", 0, MAGIC, VERSION, cid, 2, 1) + path + uuid + b"\x01" + bytes(11)
                   for cid in range(2)]
        self.admin = Connection(address, port, request[0])
        _, _, error, depth, io_bytes, hdr_bytes, _ = struct.unpack("<HHhHIII", self.admin.answer[:20])
        if error:
            raise OSError(-error, "refused")
        self.io = Connection(address, port, request[1])
        self.shift = 28 - (depth - 1).bit_length()
        name = session.encode()
        self.admin.send(struct.pack("<H", 0) + name + bytes(270 - len(name)))
        info, _ = self.admin.wait()
        _, count = struct.unpack("<HH", info[:4])
        chunk = io_bytes + hdr_bytes
        self.chunks = []
        for number in range(count):
            addr, key, length = struct.unpack_from("<QII", info, 8 + 16 * number)
            self.chunks += [(addr + at, key) for at in range(0, length, chunk)]
        assert len(self.chunks) == depth
        # The version: without it priorities would not count, which is all.
        self.ask(self.admin, struct.pack("<HHB", 0, 0, 2) + bytes(31), 36)

    def request(self, by: Connection, header: bytes, data: bytes, want: int, write: bool, chunk: int) -> tuple[int, bytes]:
        """Sends a request, returns the errno of the answer and the data."""
        addr, key = self.chunks[chunk]
        if write:
            message, at = data + header + struct.pack("<HH", 2, len(header)), 0
            offset = len(data) + len(header)
        else:
            to = struct.pack("<QII", by.base + RETURNS, by.rkey, want) if want else b""
            message, at = header + struct.pack("<HHHH", 3, len(header), 0, 1 if want else 0) + to, want
            offset = want + len(header)
        by.send(message, WR_RDMA_WRITE_WITH_IMM, chunk << self.shift | offset, addr + at, key)
        while True:
            _, imm = by.wait()
            if imm >> 28 == 1 and imm & 0x7FFFF == chunk:
                return imm >> 19 & 0x1FF, ctypes.string_at(by.base + RETURNS, want)

    def ask(self, by: Connection, header: bytes, want: int) -> tuple[int, bytes]:
        return self.request(by, header, b"", want, False, 0)

    def open(self, name: str, mode: int, flags: int = 0) -> int:
        """Returns the number of the device."""
        header = struct.pack("<HHBB", 2, 0, mode, flags) + name.encode().ljust(258, b"\0")
        error, answer = self.ask(self.admin, header, 56)
        if error:
            raise OSError(error, os.strerror(error))
        return struct.unpack_from("<I", answer, 4)[0]

    def close(self, device: int) -> int:
        return self.request(self.admin, struct.pack("<HHI", 5, 0, device), b"", 0, True, 0)[0]

    def submit(self, device: int, op: int, sector: int = 0, length: int = 4096, data: bytes | None = None) -> str:
        """One I/O; returns the name of the error."""
        if data is None:
            data = b"\xA5" * length if op & 0xFF == WRITE else b""
        header = struct.pack("<HHIQIIH", 4, 0, device, sector, op, length, 0) + bytes(6)
        is_read = op & 0xFF in (READ, FLUSH)
        want = length if op & 0xFF == READ else 0
        error, _ = self.request(self.io, header, data, want, not is_read, 1)
        return errno.errorcode.get(error, "OK")
