# SPDX-License-Identifier: GPL-2.0
"""Administrative messages of the block device: SESS_INFO, OPEN, CLOSE."""

from .. import wire
from ..client import Party
from .table import COMMON, DISK, SLOW, attack, code, in_session, named, opened


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
    """Remains of earlier requests in a chunk must not be revealed."""
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
