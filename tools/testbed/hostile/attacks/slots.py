# SPDX-License-Identifier: GPL-2.0
"""Slots: which clients get them, and requests whose data is to be fetched from memory that is not there."""

from .. import wire
from ..client import Party
from .table import COMMON, DISK, attack, code, in_session, named, opened

FLAGS = wire.EXT_SAME_KEY | wire.EXT_INV_ANSWERS | wire.EXT_SLOTS
LENGTH = 20480


class Fetched(Party):
    """A session with slots, whose memory can be read."""

    def __init__(self, flags: int = FLAGS, reads: int = 4, **options):
        super().__init__(**{"name": "fetched", "epoch": 1, **options})
        self.extensions["ext_flags"] = flags
        self.reads = reads


def gets(slots: bool, **options):
    """Connects; has slots or chunks, and is served."""
    def run() -> None:
        with Fetched(**options).set_up() as party:
            assert party.has_slots == slots, party.accepted
            device = opened(party, COMMON)
            assert party.submit(device, wire.WRITE, length=4096) == "OK"
            assert party.submit(device, wire.READ, length=4096) == "OK"
    return run


attack("slots for one that takes them", gets(True))
for flags in (0, FLAGS ^ wire.EXT_SAME_KEY, FLAGS ^ wire.EXT_INV_ANSWERS, FLAGS ^ wire.EXT_SLOTS):
    attack(f"slots, flags {flags:#x} of extensions", gets(False, flags=flags))
attack("slots for one whose memory cannot be read", gets(False, reads=0))


@named("connection of a path with slots that allows no reads")
def changes_its_mind() -> None:
    with Fetched() as party:
        party.connect(0)
        assert party.has_slots
        party.reads = 0
        said = code(party.refused(1))
        assert said == "EPROTO", said


def joins(first: int, then: int, slots: bool):
    """The further connection of a path takes other things than the first, and hears what the path has."""
    def run() -> None:
        with Fetched(first) as party:
            party.connect(0)
            party.extensions["ext_flags"] = then
            party.connect(1)
            assert party.has_slots == slots, party.accepted
            said = [(one["more_flags"] & wire.RSP_SLOTS, one["queue_depth"], one["slot_size"]) for one in party.acceptances]
            assert said[0] == said[1], said
    return run


attack("connection of a path with slots that takes none", joins(FLAGS, FLAGS ^ wire.EXT_SLOTS, True))
attack("connection of a path without slots that takes some", joins(FLAGS ^ wire.EXT_SLOTS, FLAGS, False))


def fetches(wanted: str, device_name: str = COMMON, length: int = LENGTH, more_header: int = 0, **fields):
    """A write that is answered, and the path goes on."""
    def run() -> None:
        with Fetched().set_up() as party:
            device = opened(party, device_name)
            party.home.memory.put(0, bytes(range(256)) * (LENGTH // 256))
            header = party.io_header(device, wire.WRITE, 0, length) + bytes(more_header)
            party.post_fetch(party.io, 1, header, **{"length": length, **fields})
            said = code(party.answer(party.io, 1))
            assert said in wanted.split("/"), f"{said} for {wanted}"
            assert party.submit(device, wire.READ) == "OK"
            if wanted == "OK":
                assert party.returned(4096) == bytes(range(256)) * 16
    return run


attack("write that is fetched", fetches("OK"))
attack("write that is fetched although it fits a slot", fetches("OK", length=4096))
for count in (0, 2, 0xFFFF):
    attack(f"fetch with {count} descriptors", fetches("EINVAL", sg_cnt=count))
for size in (0, 131073, 1 << 31, 0xFFFFFFFF):
    attack(f"fetch of {size:#x} bytes", fetches("EINVAL", len=size))
attack("fetch of less than the operation has", fetches("EINVAL", len=512))
attack("fetch from memory that wraps", fetches("EINVAL", addr=(1 << 64) - 1))
attack("fetch behind the beginning of its slot", fetches("EINVAL", offset=48))
attack("fetch with unknown flags", fetches("OK", flags=0xFFFE))
for size in (100, 480):
    attack(f"fetch with {size} bytes more of user header", fetches("OK", more_header=size))
attack("fetch with too long a user header", fetches("EMSGSIZE", more_header=481))


@named("fetch on the service connection")
def on_the_service_connection() -> None:
    with Fetched().set_up() as party:
        device = opened(party, DISK)
        party.post_fetch(party.service, 1, party.io_header(device, wire.WRITE, 0, LENGTH), LENGTH)
        said = code(party.answer(party.service, 1))
        assert said == "OK", said
        assert party.submit(device, wire.READ) == "OK"


@named("fetch before the session information")
def too_early() -> None:
    with Fetched() as party:
        party.connect_all()
        party.io.pair.write_imm(b"", wire.request_imm(party.depth, 0, 0))
        party.wait_closed(60)


@named("fetch in a slot whose fetch is pending")
def twice() -> None:
    with Fetched().set_up() as party:
        device = opened(party, DISK)
        header = party.io_header(device, wire.WRITE, 0, 131072)
        for chunk in (*range(1, 12), *range(1, 12)):
            party.post_fetch(party.io, chunk, header, 131072)
        party.wait_closed(60)


@named("read behind the beginning of its slot")
def behind() -> None:
    with Fetched().set_up() as party:
        device = opened(party, COMMON)
        user = party.io_header(device, wire.READ)
        header = party.read_header(4096, user)
        party.write_chunk(party.io, 1, 4096, user + header, 4096 + len(user))
        said = code(party.answer(party.io, 1))
        assert said == "EINVAL", said
        assert party.submit(device, wire.READ) == "OK"


def in_chunks(party: Party, device: int) -> None:
    header = party.io_header(device, wire.WRITE, 0, 4096)
    party.post_fetch(party.io, 1, header, 4096)
    said = code(party.answer(party.io, 1))
    assert said == "EINVAL", said


attack("fetch in a session with chunks", in_session(in_chunks))


def breaks(**fields):
    """Memory is not what the request says: its connection cannot go on, and that is all."""
    def run() -> None:
        with Fetched().set_up() as party:
            device = opened(party, DISK)
            party.post_fetch(party.io, 1, party.io_header(device, wire.WRITE, 0, LENGTH), **{"length": LENGTH, **fields})
            party.wait_closed(60)
    return run


attack("fetch from memory that is not there", breaks(addr=4096))
for key in (0, 1, 0xFFFFFFFF):
    attack(f"fetch with key {key:#x}", breaks(key=key))


@named("connection broken off while data is fetched")
def leaves_while_fetched() -> None:
    """Breaks the connection off while the server fetches."""
    for _ in range(10):
        with Fetched().set_up() as party:
            device = opened(party, DISK)
            for chunk in range(1, 12):
                party.post_fetch(party.io, chunk, party.io_header(device, wire.WRITE, 0, 131072), 131072)
            party.io.pair.break_off()
            party.leave(quietly=True)
