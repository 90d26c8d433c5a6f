# SPDX-License-Identifier: GPL-2.0
"""Answers in the message that invalidates the key of a read: which clients get them, and their bytes.

User space has no key that can be invalidated, so such a message breaks the client's connection.  The
message is in the receive buffer nevertheless."""

from .. import wire
from ..client import Party
from ..verbs import Closed
from .table import COMMON, attack, opened

CHUNK = 1
SAME_KEY = wire.answer_imm(CHUNK, kind=wire.IMM_ANSWER_SAME_KEY).to_bytes(4, "little")
BEYOND_THE_END = wire.answer_imm(CHUNK, 5, wire.IMM_ANSWER_SAME_KEY).to_bytes(4, "little")
# Before the key itself.
OTHER_KEY = wire.answer_imm(CHUNK, kind=wire.IMM_ANSWER_INV).to_bytes(4, "little") + wire.RKEY.pack(chunk=CHUNK)[:4]
NOTHING = bytes(4)
BOTH = wire.EXT_SAME_KEY | wire.EXT_INV_ANSWERS


class OfTwoMinds(Party):
    """Immediates travel in messages, on the connection for I/O only."""

    def write_chunk(self, by, chunk, at, data, offset):
        if by is not self.io:
            return super().write_chunk(by, chunk, at, data, offset)
        addr, key = self.chunks[chunk]
        by.pair.write(data, addr + at, key)
        return by.pair.send(wire.request_imm(self.depth, chunk, offset).to_bytes(4, "big"))


def body(wanted: bytes, flags: int, of_io: int = 0, length: int = 4096, sector: int = 0, kind: type[Party] = Party):
    """Reads on a connection with these flags of extensions; `of_io` are those that only the connection for I/O has."""
    def run() -> None:
        with kind(name="inval", epoch=1) as party:
            party.connect(0, ext_flags=flags)
            party.connect(1, ext_flags=flags | of_io)
            party.introduce()
            device = opened(party, COMMON)
            party.post_read(party.io, CHUNK, party.io_header(device, wire.READ, sector, length), length,
                            flags=wire.NEED_INVAL)
            try:
                message = party.io.next(30)
                raise AssertionError(f"the server has answered with {message}")
            except Closed:
                pass
            said = party.io.pair.inbox.get(0, len(wanted))
            assert said == wanted, f"body {said.hex(' ')} for {wanted.hex(' ')}"
    return run


attack("answer that invalidates", body(SAME_KEY, BOTH))
attack("answer that invalidates, of 20 KiB", body(OTHER_KEY, BOTH, length=20480))
attack("answer that invalidates, to a read beyond the end", body(BEYOND_THE_END, BOTH, sector=1 << 40))
for flags in (0, wire.EXT_SAME_KEY, wire.EXT_INV_ANSWERS):
    attack(f"answer that invalidates, flags {flags:#x} of extensions", body(NOTHING, flags))
attack("answer that invalidates, immediates in messages of the same connection",
       body(NOTHING, BOTH, of_io=wire.EXT_SEND_IMM, kind=OfTwoMinds))
