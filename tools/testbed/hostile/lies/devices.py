# SPDX-License-Identifier: GPL-2.0
"""False answers about the server and its disks."""

from .. import wire
from ..server import Honest
from ..values import numbers
from ..victim import Victim
from .table import expect, goes_on, lie, like


def introduces(**fields) -> type[Honest]:
    return like(sess_info=fields)


for name, value, wanted in (("type", 0, ("EPROTO",)), ("type", 3, ("EPROTO",)), ("type", 65535, ("EPROTO",)),
                            ("ver", 0, ("OK", "EPROTO")), ("ver", 1, ("OK", "EPROTO")), ("ver", 3, ("OK", "EPROTO")),
                            ("ver", 255, ("OK", "EPROTO"))):
    lie(f"SESS_INFO_RSP with {name}={value}", introduces(**{name: value}), expect(*wanted))


def opens(**fields) -> type[Honest]:
    return like(opened=fields)


def refuses_open(error: int) -> type[Honest]:
    class RefusesOpen(Honest):
        def open(self, server, request):
            server.answer(request, error=error)
    return RefusesOpen


# A number that user space does not have becomes EIO: for some of them the kernel would start the call again.
for number, name in ((1, "EPERM"), (132, "ERFKILL"), (134, "EIO"), (256, "EIO"), (511, "EIO")):
    lie(f"OPEN refused with {number}", refuses_open(number), expect(name))
for kind in (0, 2, 4, 65535):
    lie(f"OPEN_RSP of type {kind}", opens(type=kind), expect("EPROTO"))
for number in (0, 1, 511, 513, 1023, 49152, 65535):
    lie(f"logical blocks of {number}", opens(logical_block_size=number), expect("EINVAL"))
for number in (1 << 54, (1 << 54) + 1, 1 << 55, 1 << 63, (1 << 64) - 1):
    lie(f"disk of {number:#x} sectors", opens(nsectors=number), expect("EFBIG", "EINVAL", "EPROTO"))
lie("disk of one sector", opens(nsectors=1), expect("OK", "EINVAL"))
lie("disk without a sector", opens(nsectors=0), expect("OK", "EINVAL"))

# Mapped, whatever is in these.
LIMITS = ("max_hw_sectors", "max_write_zeroes_sectors", "max_discard_sectors", "discard_granularity", "discard_alignment",
          "physical_block_size", "max_segments", "secure_discard", "rotational", "cache_policy", "identity", "details",
          "details_flags", "details_physical", "io_min", "io_opt", "max_secure_erase_sectors", "alignment_offset",
          "cache_run")
READ_AHEAD_KIB = 64 * 1024


def maps_and_reads(v: Victim) -> None:
    said = v.map()
    assert said in ("OK", "EINVAL", "EPROTO"), f"map_device: {said}"
    if said == "OK":
        goes_on(v)
        ahead = int(v.attribute("queue/read_ahead_kb"))
        assert ahead <= READ_AHEAD_KIB, f"the server has the client read {ahead} KiB ahead"


def limit_values(name: str) -> tuple[int, ...]:
    top = numbers(wire.OPEN_ANSWER.field(name).size)[-1]
    return (1, top // 2 + 1, top)


for value in (2, 1, 0):
    lie(f"limits of a disk, all at boundary {value}", opens(**{name: limit_values(name)[value] for name in LIMITS}),
        maps_and_reads)
for name in ("io_min", "details_physical", "discard_granularity", "physical_block_size", "io_opt"):
    lie(f"limits of a disk, {name} at its greatest", opens(**{name: limit_values(name)[-1]}), maps_and_reads)
