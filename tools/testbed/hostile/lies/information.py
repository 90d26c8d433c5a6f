# SPDX-License-Identifier: GPL-2.0
"""Session information."""

from .. import wire
from ..server import Honest
from .table import REFUSED, expect, lie, not_mapped


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


# The path may be lost after it was up, before the disk is open.
lie("session information, early", InfoEarly, expect("OK", *REFUSED, "ECONNABORTED", "ENOTCONN"))
