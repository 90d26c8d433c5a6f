# SPDX-License-Identifier: GPL-2.0
"""Request headers: each bad one is answered with an error, and the path goes on."""

from .. import wire
from ..client import Party
from .table import DISK, attack, code, in_session, opened


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
