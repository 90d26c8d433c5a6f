# SPDX-License-Identifier: GPL-2.0
"""Connections in user space: an id of the connection manager, and a separate queue pair, which can
write with immediates and invalidate keys.

This module adds what pyverbs of rdma-core 44 lacks: the descriptor of an event channel, requests
without memory, and an address that only close() frees."""

import errno
import itertools
import os
import select
import socket
import threading
import time
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass

import pyverbs.cm_enums as ce
import pyverbs.enums as e
from pyverbs.cmid import CMID, AddrInfo, CMEvent, CMEventChannel, ConnParam
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsError, PyverbsRDMAError
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

# Rxe gives up half a second after the first attempt
# otherwise, and emulated guests are slower than that.  These are eight seconds.
ACK_TIMEOUT = 18
RETRIES = 7
# 0.64 ms, in the numbers of InfiniBand.
SHORT_RNR = 12
# Of a queue pair.
SENDS, RECEIVES = 1024, 64
RECEIVE_BYTES = 16384
# Clients send a name, and capsules.
SHORT_RECEIVES = 8192
DEFAULT_WAIT = 20.0

EVENTS = {value: name.removeprefix("RDMA_CM_EVENT_") for name, value in vars(ce).items()
          if name.startswith("RDMA_CM_EVENT_")}


class Closed(ConnectionError):
    """The connection is gone."""


class Rejected(ConnectionError):
    """The other side refused the connection, with these private data."""

    def __init__(self, private: bytes):
        super().__init__(f"rejected: {private[:8].hex()}")
        self.private = private


class Failed(Exception):
    """A request of ours completed with a status other than success."""

    def __init__(self, status: int):
        super().__init__(status_name(status))
        self.status = status


def status_name(status: int) -> str:
    for name in ("SUCCESS", "LOC_LEN_ERR", "LOC_QP_OP_ERR", "LOC_PROT_ERR", "WR_FLUSH_ERR", "REM_INV_REQ_ERR",
                 "REM_ACCESS_ERR", "REM_OP_ERR", "RETRY_EXC_ERR", "RNR_RETRY_EXC_ERR"):
        if getattr(e, "IBV_WC_" + name) == status:
            return name
    return f"status {status}"


_contexts: dict[str, Context] = {}


def context(name: str) -> Context:
    """The device of that name, opened once."""
    if name not in _contexts:
        _contexts[name] = Context(name=name)
    return _contexts[name]


class Pause:
    """Sleeps longer and longer while nothing comes, as in an emulated guest each look costs."""

    SHORTEST, LONGEST = 0.0005, 0.016

    def __init__(self):
        self.seconds = self.SHORTEST

    def take(self) -> None:
        time.sleep(self.seconds)
        self.seconds = min(2 * self.seconds, self.LONGEST)

    def reset(self) -> None:
        self.seconds = self.SHORTEST


class Channel:
    """An event channel that can be waited for."""

    # Threads that open and close channels at once would take each other's descriptors for their own.
    _changing = threading.Lock()

    def __init__(self):
        with self._changing:
            before = self._descriptors()
            self.raw = CMEventChannel()
            # pyverbs does not tell which descriptor it is.
            (self.fd,) = self._descriptors() - before
        os.set_blocking(self.fd, False)

    def close(self) -> None:
        with self._changing:
            self.raw.close()

    @staticmethod
    def _descriptors() -> set[int]:
        found = set()
        for name in os.listdir("/proc/self/fd"):
            try:
                if os.readlink(f"/proc/self/fd/{name}").endswith("rdma_cm"):
                    found.add(int(name))
            except OSError:
                pass
        return found

    def event(self, seconds: float = DEFAULT_WAIT) -> CMEvent | None:
        """The next event, which is to be acknowledged; None if there is none in time."""
        deadline = time.monotonic() + seconds
        while True:
            ready, _, _ = select.select([self.fd], [], [], max(deadline - time.monotonic(), 0))
            if not ready:
                return None
            try:
                return CMEvent(self.raw)
            except PyverbsRDMAError as error:
                # Those of an id that was destroyed have gone.
                if error.error_code not in (errno.EAGAIN, None) and "unavailable" not in str(error):
                    raise

    def expect(self, *wanted: int, seconds: float = DEFAULT_WAIT) -> tuple[int, bytes]:
        """The type of the next event, one of these, and its private data."""
        event = self.event(seconds)
        if event is None:
            raise TimeoutError(f"no event, for {'/'.join(EVENTS[kind] for kind in wanted)}")
        kind, private = event.event_type, bytes(event.private_data or b"")
        event.ack_cm_event()
        if kind in wanted:
            return kind, private
        if kind == ce.RDMA_CM_EVENT_REJECTED:
            raise Rejected(private)
        raise Closed(f"event {EVENTS.get(kind, kind)} for {'/'.join(EVENTS[k] for k in wanted)}")


class Memory:
    """Registered memory, from which messages are sent and into which they come."""

    ACCESS = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ

    def __init__(self, pd: PD, length: int, access: int = ACCESS):
        self.length = length
        self.mr = MR(pd, length, access)
        self.mr.write(bytes(length), length)
        self.base, self.lkey, self.rkey = self.mr.buf, self.mr.lkey, self.mr.rkey

    def put(self, at: int, data: bytes) -> None:
        self._check(at, len(data))
        if data:
            self.mr.write(data, len(data), at)

    def get(self, at: int, length: int) -> bytes:
        self._check(at, length)
        return bytes(self.mr.read(length, at)) if length else b""

    def _check(self, at: int, length: int) -> None:
        """pyverbs does not check addresses that it reads and writes."""
        if at < 0 or length < 0 or at + length > self.length:
            raise ValueError(f"bytes {at} to {at + length} of {self.length}")

    def close(self) -> None:
        self.mr.close()


class Home:
    """The objects that the connections of one party share: the protection domain, and memory."""

    def __init__(self, device: str, length: int):
        self.pd = PD(context(device))
        self.memory = Memory(self.pd, length)

    def close(self) -> None:
        self.memory.close()
        self.pd.close()


@dataclass(frozen=True)
class Message:
    """A received message: its bytes, and its immediate if it has one."""

    data: bytes
    imm: int | None


class Pair:
    """A queue pair with receives, and what completes on it."""

    def __init__(self, device: str, pd: PD, receives: int = RECEIVES, receive_bytes: int = RECEIVE_BYTES):
        ctx = context(device)
        self.cq = CQ(ctx, SENDS + receives + 64)
        cap = QPCap(max_send_wr=SENDS, max_recv_wr=receives, max_send_sge=1, max_recv_sge=1, max_inline_data=0)
        self.qp = QP(pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap, sq_sig_all=0))
        self.receives, self.receive_bytes = receives, receive_bytes
        self.inbox = Memory(pd, receives * receive_bytes)
        # A second one for what is sent; requests may be under way while the next is made.
        self.outbox = Memory(pd, 1 << 19)
        self.place = 0
        self.posted = self.completed = 0
        self.status = e.IBV_WC_SUCCESS
        self.messages: deque[Message] = deque()
        self.failed: dict[int, int] = {}
        # Requests that are posted together, with their memory.
        self.chain: list[tuple[SendWR, SGE]] | None = None

    @contextmanager
    def at_once(self):
        """Posts the requests of its block in one call, so that they leave as fast as the device sends."""
        self.chain = []
        yield
        chain, self.chain = self.chain, None
        for (wr, _), (following, _) in itertools.pairwise(chain):
            wr.next_wr = following
        self.qp.post_send(chain[0][0])
        for wr, sge in chain:
            wr.close()
            sge.close()

    def to(self, cmid: CMID, state: int) -> None:
        attr, mask = cmid.init_qp_attr(state)
        if mask & e.IBV_QP_TIMEOUT:
            attr.timeout = ACK_TIMEOUT
        if mask & e.IBV_QP_MIN_RNR_TIMER:
            # The number 0 stands for the longest time there is, 655 ms.
            attr.min_rnr_timer = SHORT_RNR
        if state == e.IBV_QPS_RTS:
            # Whatever the peer offers: one that must be refused is to be asked at all.
            attr.max_rd_atomic = 1
            # Seven would be without end for rxe.
            attr.retry_cnt = RETRIES - 1
        if state == e.IBV_QPS_INIT:
            # Before it has asked, the connection manager knows of no access.
            attr.qp_access_flags = e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ
            mask |= e.IBV_QP_ACCESS_FLAGS
        self.qp.modify(attr, mask)
        if state == e.IBV_QPS_INIT:
            for number in range(self.receives):
                self.receive(number)

    def break_off(self) -> None:
        """Puts the queue pair into the error state, without a word to the peer."""
        attr = QPAttr()
        attr.qp_state = e.IBV_QPS_ERR
        self.qp.modify(attr, e.IBV_QP_STATE)

    def receive(self, number: int) -> None:
        sge = SGE(self.inbox.base + number * self.receive_bytes, self.receive_bytes, self.inbox.lkey)
        wr = RecvWR(wr_id=1 << 32 | number, num_sge=1, sg=[sge])
        try:
            self.qp.post_recv(wr)
        finally:
            wr.close()
            sge.close()

    def post(self, opcode: int, data: bytes = b"", imm: int = 0, addr: int = 0, rkey: int = 0, length: int | None = None,
             local: int | None = None) -> int:
        """Posts a request of any kind; the number to look its end up by.  The data are
        sent from memory of this queue pair, or stand at `local` there."""
        while self.posted - self.completed >= SENDS - 1:
            self.poll()
            self.check()
        length = len(data) if length is None else length
        if local is None:
            room = (length + 63) // 64 * 64
            if self.place + room > self.outbox.length:
                self.place = 0
            local, self.place = self.place, self.place + room
            self.outbox.put(local, data)
        self.posted += 1
        # Of an id that is to be invalidated it is the key, in the same place.
        order = imm if opcode == e.IBV_WR_SEND_WITH_INV else socket.htonl(imm)
        sge = SGE(self.outbox.base + local, length, self.outbox.lkey)
        wr = SendWR(wr_id=self.posted, opcode=opcode, num_sge=1, imm_data=order, sg=[sge])
        if length == 0:
            wr.num_sge = 0
        if opcode in (e.IBV_WR_RDMA_WRITE, e.IBV_WR_RDMA_WRITE_WITH_IMM, e.IBV_WR_RDMA_READ):
            wr.set_wr_rdma(rkey, addr)
        if self.chain is not None:
            self.chain.append((wr, sge))
            return self.posted
        try:
            self.qp.post_send(wr)
        finally:
            wr.close()
            sge.close()
        return self.posted

    def send(self, data: bytes = b"") -> int:
        return self.post(e.IBV_WR_SEND, data)

    def send_imm(self, data: bytes, imm: int) -> int:
        return self.post(e.IBV_WR_SEND_WITH_IMM, data, imm)

    def send_inv(self, key: int, data: bytes = b"") -> int:
        return self.post(e.IBV_WR_SEND_WITH_INV, data, key)

    def write(self, data: bytes, addr: int, rkey: int) -> int:
        return self.post(e.IBV_WR_RDMA_WRITE, data, 0, addr, rkey)

    def write_imm(self, data: bytes, imm: int, addr: int = 0, rkey: int = 0) -> int:
        return self.post(e.IBV_WR_RDMA_WRITE_WITH_IMM, data, imm, addr, rkey)

    def read(self, addr: int, rkey: int, length: int) -> int:
        return self.post(e.IBV_WR_RDMA_READ, b"", 0, addr, rkey, length)

    def poll(self) -> bool:
        """Takes in what has completed; whether there was anything."""
        count, completions = self.cq.poll(16)
        for wc in completions:
            if wc.wr_id >> 32:
                self._received(wc)
            else:
                self.completed = max(self.completed, wc.wr_id)
                if wc.status != e.IBV_WC_SUCCESS:
                    self.failed[wc.wr_id] = wc.status
                    self._broken(wc.status)
        return count > 0

    def _received(self, wc) -> None:
        if wc.status != e.IBV_WC_SUCCESS:
            return self._broken(wc.status)
        number = wc.wr_id & 0xFFFFFFFF
        is_write = wc.opcode == e.IBV_WC_RECV_RDMA_WITH_IMM
        data = b"" if is_write else self.inbox.get(number * self.receive_bytes, wc.byte_len)
        imm = socket.ntohl(wc.imm_data) if wc.wc_flags & e.IBV_WC_WITH_IMM else None
        self.messages.append(Message(data, imm))
        self.receive(number)
        return None

    def _broken(self, status: int) -> None:
        # The first one says why.
        if self.status in (e.IBV_WC_SUCCESS, e.IBV_WC_WR_FLUSH_ERR):
            self.status = status

    def check(self) -> None:
        if self.status != e.IBV_WC_SUCCESS:
            raise Closed(f"queue pair: {status_name(self.status)}")

    def wait_sent(self, number: int, seconds: float = DEFAULT_WAIT) -> None:
        """Waits until a request of ours is acknowledged.

        Failed where it is not, with the status that says why."""
        deadline, pause = time.monotonic() + seconds, Pause()
        while self.completed < number:
            if not self.poll():
                if time.monotonic() > deadline:
                    raise TimeoutError("a request of ours does not complete")
                pause.take()
        if number in self.failed:
            raise Failed(self.failed[number])

    def close(self) -> None:
        self.qp.close()
        self.inbox.close()
        self.outbox.close()
        self.cq.close()


class Connection:
    """A connected queue pair, of either side."""

    def __init__(self, channel: Channel | None, cmid: CMID, home: Home, device: str,
                 receive_bytes: int = RECEIVE_BYTES):
        self.channel, self.cmid, self.home = channel, cmid, home
        # How many reads the peer may have in progress here, and this side there.
        self.reads = self.own_reads = 0
        self.pair = Pair(device, home.pd, RECEIVES, receive_bytes)
        self.ended = False

    # The active side.

    @classmethod
    def resolve(cls, home_of, address: str, port: int, source: str | None = None) -> "Connection":
        """Finds the way to an address; home_of(device) makes what connections share."""
        channel = Channel()
        cmid = CMID(creator=channel.raw, port_space=ce.RDMA_PS_TCP)
        info = AddrInfo(src=source, dst=address, dst_service=str(port), port_space=ce.RDMA_PS_TCP)
        cmid.resolve_addr(info, 5000)
        channel.expect(ce.RDMA_CM_EVENT_ADDR_RESOLVED)
        cmid.resolve_route(5000)
        channel.expect(ce.RDMA_CM_EVENT_ROUTE_RESOLVED)
        device = cmid.dev_name
        device = device.decode() if isinstance(device, bytes) else device
        return cls(channel, cmid, home_of(device), device)

    def ask(self, private: bytes) -> None:
        """Sends the connection request."""
        self.pair.to(self.cmid, e.IBV_QPS_INIT)
        self.cmid.connect(self._param(private))

    def answered(self, seconds: float = DEFAULT_WAIT) -> bytes:
        """The private data of the acceptance; Rejected with those of a refusal."""
        _, private = self.channel.expect(ce.RDMA_CM_EVENT_CONNECT_RESPONSE, seconds=seconds)
        self.pair.to(self.cmid, e.IBV_QPS_RTR)
        self.pair.to(self.cmid, e.IBV_QPS_RTS)
        return private

    def establish(self) -> None:
        self.cmid.establish()

    # The passive side.

    def accept(self, private: bytes) -> None:
        for state in (e.IBV_QPS_INIT, e.IBV_QPS_RTR, e.IBV_QPS_RTS):
            self.pair.to(self.cmid, state)
        self.cmid.accept(self._param(private))

    def reject(self, private: bytes) -> None:
        self.cmid.reject(private)

    # Both.

    def _param(self, private: bytes) -> ConnParam:
        param = ConnParam(resources=self.reads, depth=self.own_reads, retry=RETRIES, rnr_retry=RETRIES, qp_num=self.pair.qp.qp_num,
                          data_len=len(private))
        # It keeps an address of theirs only.
        self.private = private
        param.set_private_data(private)
        return param

    def next(self, seconds: float = DEFAULT_WAIT) -> Message:
        """The next message."""
        deadline, pause = time.monotonic() + seconds, Pause()
        while not self.pair.messages:
            if self.pair.poll():
                continue
            self.pair.check()
            if self.is_ended():
                raise Closed("disconnected by the peer")
            if time.monotonic() > deadline:
                raise TimeoutError("no message")
            pause.take()
        return self.pair.messages.popleft()

    def is_ended(self) -> bool:
        """Whether the peer has ended it.  For the side that has the channel alone."""
        if not self.ended and self.channel is not None:
            event = self.channel.event(0)
            if event is not None:
                # A peer that closes before it knows that the connection is established rejects it.
                self.ended = event.event_type in (ce.RDMA_CM_EVENT_DISCONNECTED, ce.RDMA_CM_EVENT_DEVICE_REMOVAL,
                                                  ce.RDMA_CM_EVENT_TIMEWAIT_EXIT, ce.RDMA_CM_EVENT_REJECTED)
                event.ack_cm_event()
        return self.ended

    def wait_closed(self, seconds: float = DEFAULT_WAIT) -> None:
        """Waits until the peer ends the connection; what comes before is thrown away."""
        deadline, pause = time.monotonic() + seconds, Pause()
        while not self.is_ended():
            self.pair.poll()
            if time.monotonic() > deadline:
                raise AssertionError("the peer goes on with the connection")
            pause.take()

    def disconnect(self) -> None:
        try:
            self.cmid.disconnect()
        except PyverbsRDMAError:
            # It is gone already.
            pass

    def close(self, quietly: bool = False) -> None:
        """Ends it and gives all of it back; quietly: without telling the peer first."""
        if not quietly:
            self.disconnect()
        self.pair.close()
        self.cmid.close()
        if self.channel is not None:
            self.channel.close()


class Listener:
    """Takes connections in at a port."""

    def __init__(self, address: str, port: int):
        self.channel = Channel()
        self.cmid = CMID(creator=self.channel.raw, port_space=ce.RDMA_PS_TCP)
        info = AddrInfo(src=address, src_service=str(port), port_space=ce.RDMA_PS_TCP, flags=ce.RAI_PASSIVE)
        self.cmid.bind_addr(info)
        self.cmid.listen(128)
        device = self.cmid.dev_name
        self.device = device.decode() if isinstance(device, bytes) else device

    def event(self, home: Home | None, seconds: float = 0) -> tuple[int, bytes, Connection | None] | None:
        """The next event, its private data and the connection that it asks for, if it does
        and still can be had."""
        event = self.channel.event(seconds)
        if event is None:
            return None
        kind, private, connection = event.event_type, bytes(event.private_data or b""), None
        if kind == ce.RDMA_CM_EVENT_CONNECT_REQUEST:
            try:
                cmid = CMID(creator=event, listen_id=self.cmid)
                connection = Connection(None, cmid, home, self.device, SHORT_RECEIVES)
            except PyverbsError:
                # The client has given up already.
                pass
        event.ack_cm_event()
        return kind, private, connection

    def close(self) -> None:
        self.cmid.close()
        self.channel.close()
