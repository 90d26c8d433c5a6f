# SPDX-License-Identifier: GPL-2.0
"""Every operation of a block device, from the client's program to the server's disk, on disks of
several kinds and with the kernel's own peers."""

import errno
import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from testbed import blockdev
from testbed.blocktrace import Bio, BlockTrace
from testbed.stack import STACKS

pytestmark = pytest.mark.fast

OURS, MAINLINE = STACKS["ibtrs"], STACKS["mainline"]
SIZE_MB = 32
# The properties that a disk of the client has from that of the server; the first also if one of
# them is the kernel's own.
LIMITS = ("logical_block_size", "physical_block_size", "discard_granularity", "discard_max_bytes",
          "write_zeroes_max_bytes", "write_cache", "zoned")
OUR_LIMITS = (*LIMITS, "fua", "minimum_io_size", "optimal_io_size", "write_zeroes_unmap_max_bytes", "rotational")
# The largest that a message can say, in bytes.
MOST = (2**32 - 1) >> 9 << 9

# On the client: each operation on the disk, and what it should make of it on a
# file.  Offsets are 4096 x the number.
OPERATIONS = """
set -e
part() {{ dd if=/tmp/part of={disk} bs=4k conv=notrunc oflag=direct status=none "$@"; }}
model() {{ dd of=/tmp/model bs=4k conv=notrunc status=none "$@"; }}
dd if=/tmp/part of={disk} bs=128k count=1 seek=1 oflag=direct status=none
model if=/tmp/part seek=32
dd if={disk} of=/tmp/read bs=128k count=1 skip=1 iflag=direct status=none
cmp /tmp/part /tmp/read
part count=1 seek=100 oflag=direct,dsync
model if=/tmp/part count=1 seek=100
dd if=/dev/null of={disk} conv=notrunc,fsync status=none
# By force: else it looks for signatures first, which are reads.
blkdiscard -f -o 1M -l 1M {disk}
model if=/dev/zero count=256 seek=256
blkdiscard -f -z -o 2M -l 64k {disk}
model if=/dev/zero count=16 seek=512
# Only where the disk can: it is not done by writing.
if [ $(< /sys/block/{disk.name}/queue/write_zeroes_max_bytes) != 0 ]; then
    fallocate --punch-hole -o 3M -l 64k {disk}
    model if=/dev/zero count=16 seek=768
fi
fallocate --zero-range -o 4M -l 64k {disk}
model if=/dev/zero count=16 seek=1024
! blkdiscard -f -s -o 5M -l 64k {disk} 2>/tmp/refused
ionice -c 1 -n 2 dd if=/tmp/part of={disk} bs=4k count=1 seek=1500 conv=notrunc oflag=direct status=none
model if=/tmp/part count=1 seek=1500
cat /tmp/refused
"""


def null_blk(server, name: str = "nullb0", **features) -> str:
    """A disk with features of the driver's, named as its files in configfs."""
    server.null_blk(name, SIZE_MB)
    # They are read when the disk is switched on.
    writes = [f"echo {value} > {key}" for key, value in features.items()]
    server.run(" && ".join([f"cd /sys/kernel/config/nullb/{name}", "echo 0 > power", *writes, "echo 1 > power"]))
    return f"/dev/{name}"


def virtio(server, system: bool = False) -> str:
    """A disk of its own each time; what is plugged in stays."""
    handle, image = tempfile.mkstemp(".img", "virtio-", server.folder)
    os.truncate(handle, SIZE_MB << 20)
    os.close(handle)
    if system:
        subprocess.run(["mkfs.ext4", "-q", image], check=True)
    return server.add_disk(Path(image))


def loop(server) -> str:
    """A file in a file system, as tmpfs cannot write zeroes."""
    server.run(f"modprobe loop && mkdir -p /mnt/loop && mount {virtio(server, system=True)} /mnt/loop && "
               f"truncate -s {SIZE_MB}M /mnt/loop/img && losetup /dev/loop0 /mnt/loop/img")
    return "/dev/loop0"


def linear(server) -> str:
    """Two disks, the second not from its start on."""
    first, second = null_blk(server, "nullb4", discard=1), null_blk(server, "nullb5", discard=1)
    # In the midst of a discard.
    at = (1 << 11) + 1024
    table = f"0 {at} linear {first} 0\\n{at} {SIZE_MB << 10} linear {second} 2048\\n"
    server.run(f"modprobe dm-mod && printf '{table}' | dmsetup --noudevrules --noudevsync create joined")
    return "/dev/" + server.run("cd /sys/block && echo dm-*").strip()


def unaligned(server) -> str:
    """A disk whose physical blocks begin in the midst of its own."""
    server.run("modprobe brd rd_nr=1 rd_size=1024 && echo 0 2047 linear /dev/ram0 1 | "
               "dmsetup --noudevrules --noudevsync create unaligned")
    return "/dev/dm-1"


# All are there at once, so each has a name of its own.
DISKS = {
    "null_blk": lambda server: null_blk(server, discard=1),
    "cache": lambda server: null_blk(server, "nullb1", discard=1, cache_size=16, fua=0, rotational=1),
    "cache-fua": lambda server: null_blk(server, "nullb2", discard=1, cache_size=16, fua=1),
    "4096": lambda server: null_blk(server, "nullb3", discard=1, blocksize=4096),
    "loop": loop,
    "virtio": virtio,
    "dm": linear,
}


def limits(guest, disk: str, names) -> dict[str, str]:
    name = disk.removeprefix("/dev/")
    values = guest.run(f"cd /sys/block/{name}/queue && cat {' '.join(names)}").splitlines()
    return dict(zip(names, values))


def expected(server, device: str, names) -> dict[str, str]:
    """The limits of the server's disk, as far as the client's can have them."""
    wanted = limits(server, device, names)
    block = int(wanted["logical_block_size"])
    for name in names:
        if name.endswith("_max_bytes"):
            wanted[name] = str(min(int(wanted[name]), MOST) // block * block)
    return wanted


def check_operations(client, server, device: str, disk: str) -> BlockTrace:
    client.run("dd if=/dev/urandom of=/tmp/model bs=1M count=8 status=none && "
               "dd if=/dev/urandom of=/tmp/part bs=128k count=1 status=none && "
               f"dd if=/tmp/model of={disk} bs=1M oflag=direct status=none")
    trace = BlockTrace(server, device)
    said = client.run(OPERATIONS.format(disk=Path(disk)))
    trace.stop()
    assert os.strerror(errno.EOPNOTSUPP) in said
    # The server's own disk, past the page cache of its kernel.
    assert blockdev.checksum(server, device, 8) == client.run("sha256sum < /tmp/model")
    return trace


def check_bios(server, device: str, trace: BlockTrace, is_mapped: bool = False) -> None:
    """The requests that the server's disk received, in the order of the operations. `is_mapped`: it is of
    device-mapper, and has no requests of its own."""
    has = limits(server, device, OUR_LIMITS)
    bios = trace.bios()

    def at(sector: int) -> list[Bio]:
        found = [bio for bio in bios if bio.sector == sector and bio.sectors]
        # Device-mapper refuses a bio with REQ_NOWAIT that it has to split, and gets it once more.
        return [bio for number, bio in enumerate(found) if not (is_mapped and number and bio == found[number - 1])]

    # One request each, and as large as they were.
    assert len(at(256)) == 2, bios
    write, read = at(256)
    assert (write.what[0], write.sectors, read.what[0], read.sectors) == ("W", 256, "R", 256)
    assert len(at(800)) == 1, bios
    (durable,) = at(800)
    flushes = [bio for bio in bios if bio.what.startswith("F") and not bio.sectors]
    cached = has["write_cache"] == "write back"
    assert ("F" in durable.what[1:]) == (cached and has["fua"] == "1"), durable
    # That of fsync, and for a durable write on a disk that does not know these.
    assert len(flushes) >= (0 if not cached else 1 if has["fua"] == "1" else 2), bios
    assert cached or not flushes
    if int(has["discard_max_bytes"]):
        assert [(bio.what[0], bio.sectors) for bio in at(2048)] == [("D", 2048)]
    if int(has["write_zeroes_max_bytes"]):
        for sector in (4096, 6144):
            assert at(sector)[0].what.startswith("WZ") and at(sector)[0].sectors == 128
    if not is_mapped:
        # The client's realtime class is not the server's, unless that allows it.
        assert "be/2" in trace.priorities() and "rt/2" not in trace.priorities()


def test_operations_and_limits(pair, stack):
    server, client = pair
    blockdev.load(pair, stack)
    for number, (kind, make) in enumerate(DISKS.items()):
        device, disk = make(server), f"/dev/{stack.family}{number}"
        client.run(stack.map_device(device))
        assert (kind, limits(client, disk, OUR_LIMITS)) == (kind, expected(server, device, OUR_LIMITS))
        check_bios(server, device, check_operations(client, server, device, disk), kind == "dm")
    device, disk = unaligned(server), f"/dev/{stack.family}{len(DISKS)}"
    client.run(stack.map_device(device))
    assert limits(client, disk, OUR_LIMITS) == expected(server, device, OUR_LIMITS)
    offset = "cat /sys/block/{}/alignment_offset"
    assert client.run(offset.format(Path(disk).name)) == server.run(offset.format("dm-1")) == "3584"
    client.run(stack.unmap(list(DISKS).index("loop")))
    server.run("losetup -d /dev/loop0 && umount /mnt/loop")


# Soft-iWARP has no immediates, which mainline cannot do without.
@pytest.mark.rdma("rxe")
@pytest.mark.parametrize("client_stack, server_stack", [(OURS, MAINLINE), (MAINLINE, OURS)],
                         ids=["to-mainline", "from-mainline"])
def test_operations_with_mainline(pair, client_stack, server_stack):
    server, client = pair
    server.run(server_stack.load_server())
    client.run(client_stack.load_client())
    # As large as the server lets them be, headers taken from 128 KiB in C.
    most = 256 if server_stack is OURS else 248
    for number, kind in enumerate(("cache-fua", "virtio")):
        device, disk = DISKS[kind](server), f"/dev/{client_stack.family}{number}"
        name = device.removeprefix("/dev/") if server_stack is OURS else device.removeprefix("/")
        client.run(f'echo "sessname=s path=ip:10.0.1.1 device_path={name}" > {client_stack.map_file}')
        assert limits(client, disk, LIMITS) == expected(server, device, LIMITS)
        trace = check_operations(client, server, device, disk)
        assert ("be/2" if server_stack is OURS else "rt/2") in trace.priorities()
        assert max(bio.sectors for bio in trace.bios() if bio.what[0] == "W") == most
        assert limits(client, disk, ["max_hw_sectors_kb"]) == {"max_hw_sectors_kb": str(most // 2)}


def test_a_cache_that_is_turned_on_later_is_written_through(pair, stack):
    """The client's disk has none, so nobody flushes it."""
    server, client = pair
    device = loop(server)
    cache = f"/sys/block/{Path(device).name}/queue/write_cache"
    server.run(f"echo write through > {cache}")
    blockdev.load(pair, stack)
    client.run(stack.map_device(device))
    queue = f"/sys/block/{stack.family}0/queue"
    assert client.run(f"cat {queue}/write_cache") == "write through"
    # Zeroes are written where that is the only way to make them last.
    use = (f"dd if=/dev/urandom of={stack.disk} bs=64k count=1 oflag=direct status=none && "
           f"blkdiscard -f -z -o 1M -l 64k {stack.disk} && "
           f"dd if=/dev/zero of={stack.disk} bs=4k count=1 seek=512 oflag=direct,dsync status=none")
    written = []
    for mode in ("write through", "write back", "write through"):
        assert server.run(f"echo {mode} > {cache} && cat {cache}") == mode
        trace = BlockTrace(server, device)
        client.run(use)
        trace.stop()
        written.append({bio.sector: bio.what[:2].removesuffix("S") for bio in trace.bios() if bio.sectors})
    assert written == [{0: "W", 2048: "WZ", 4096: "W"}, {0: "WF", 2048: "WF", 4096: "WF"},
                       # The client's kernel remembers that its disk does not support write zeroes.
                       {0: "W", 2048: "W", 4096: "W"}]
    assert client.run(f"cat {queue}/write_cache") == "write through"
    # A disk that is mapped now has the cache, and flushes it.
    server.run(f"echo write back > {cache}")
    client.run(f"{stack.unmap()} && {stack.map_device(device)}")
    assert client.run(f"cat {queue}/write_cache") == "write back"
    trace = BlockTrace(server, device)
    client.run(f"dd if=/dev/zero of={stack.disk} bs=4k count=1 oflag=direct status=none")
    trace.stop()
    assert [bio.what.rstrip("S") for bio in trace.bios() if bio.sectors] == ["W"]
    client.run(stack.unmap())
    server.run("losetup -d /dev/loop0 && umount /mnt/loop")


def test_realtime_priority_is_for_the_operator_to_allow(pair, stack):
    server, client = pair
    device = null_blk(server)
    server.run(f"{stack.load_server()} allow_rt_prio=Y")
    client.run(f"{stack.load_client()} && {stack.map_device(device)}")
    trace = BlockTrace(server, device)
    for kind in ("-c 1 -n 3", "-c 2 -n 5", "-c 3"):
        client.run(f"ionice {kind} dd if={stack.disk} of=/dev/null bs=4k count=1 iflag=direct status=none")
    trace.stop()
    assert {"rt/3", "be/5"} < trace.priorities() and any(prio.startswith("idle") for prio in trace.priorities())


def test_a_zoned_disk_is_refused(pair, stack):
    server, client = pair
    device = null_blk(server, zoned=1, zone_size=4)
    blockdev.load(pair, stack)
    for mode in ("rw", "ro"):
        line = stack.map_device(device).replace(f"path={device}", f"path={device} access_mode={mode}")
        refused = client.run(line, check=False)
        assert os.strerror(errno.EOPNOTSUPP) in refused
    assert "the protocol does not support" in server.run("dmesg | tail -n 5")
    # Nobody holds it.
    server.remove_null_blk()


def test_what_went_wrong_is_what_a_program_is_told(pair, stack):
    """No room is no medium error, and no I/O error; what the disk turns out not to
    do, it is not asked for again."""
    server, client = pair
    server.run("modprobe loop && mkdir -p /mnt/small && mount -t tmpfs -o size=2m none /mnt/small && "
               "truncate -s 8M /mnt/small/img && losetup /dev/loop0 /mnt/small/img")
    blockdev.load(pair, stack)
    client.run(stack.map_device("/dev/loop0"))
    # A tmpfs cannot, as loop does not know before it has tried; then zeroes are written.
    zeroes = f"cat /sys/block/{stack.family}0/queue/write_zeroes_max_bytes"
    assert int(client.run(zeroes)) > 0
    client.run(f"blkdiscard -f -z -l 64k {stack.disk}")
    assert int(client.run(zeroes)) == int(limits(server, "loop0", ["write_zeroes_max_bytes"]).popitem()[1]) == 0
    full = client.run(f"dd if=/dev/zero of={stack.disk} bs=128k count=32 oflag=direct", check=False)
    assert os.strerror(errno.ENOSPC) in full
    client.run(stack.unmap())
    server.run("losetup -d /dev/loop0")


def test_limits_of_control_groups(pair, stack):
    client = pair.client
    blockdev.map_new(pair, stack)
    client.run("mkdir -p /tmp/groups && mount -t cgroup2 none /tmp/groups && cd /tmp/groups && "
               "echo +io > cgroup.subtree_control && mkdir slow && "
               f"echo $(< /sys/block/{stack.family}0/dev) rbps=2097152 > slow/io.max")
    try:
        read = f"dd if={stack.disk} of=/dev/null bs=64k count=96 iflag=direct status=none"
        tenths = int(client.run(f"read a b < /proc/uptime; (echo $BASHPID > /tmp/groups/slow/cgroup.procs; {read}); "
                                "read c d < /proc/uptime; echo $(( (${c/./} - ${a/./}) / 10 ))"))
        # 6 MiB at 2 MiB a second.
        assert 20 <= tenths < 100
    finally:
        client.run("rmdir /tmp/groups/slow && umount /tmp/groups")


def test_it_looks_like_any_disk(pair, stack):
    server, client = pair
    device = null_blk(server, discard=1, cache_size=16, rotational=1)
    blockdev.load(pair, stack)
    client.run(stack.map_device(device))
    disk = stack.disk
    columns = "SIZE,RO,TYPE,ROTA,RM,LOG-SEC,PHY-SEC,MIN-IO,OPT-IO,ALIGNMENT,DISC-GRAN,DISC-MAX,DISC-ALN,DISC-ZERO,ZONED"
    see = "lsblk --bytes --nodeps --noheadings --output " + columns
    assert client.run(f"{see} {disk}").split() == server.run(f"{see} {device}").split()
    keys = "udevadm info --query=property {} | cut -d= -f1"
    assert client.run(keys.format(disk)) == server.run(keys.format(device))
    # Tables, signatures and their end, as the server sees them.
    client.run(f"printf 'label: gpt\\n2048,4096\\n,\\n' | sfdisk --quiet {disk} && mkfs.ext4 -q {disk}p1")
    client.wait_until(f"[ -b {disk}p2 ]")
    dump = "sfdisk --dump {0} | sed 's|{0}|disk|'"
    assert client.run(dump.format(disk)) == server.run(f"blockdev --flushbufs {device}; {dump.format(device)}")
    # All but read-ahead, which follows the largest request, and the names.
    report = "blockdev --report {0} | while read -r ro _ rest; do echo $ro ${{rest%%/dev/*}}; done"
    assert client.run(report.format(disk)) == server.run(report.format(device))
    said = client.run(f"hdparm {disk} && hdparm -g {disk}p1 && hdparm -t --direct {disk}")
    geometry = f"geometry      = {SIZE_MB}/64/32, sectors = "
    assert f"{geometry}{SIZE_MB << 11}, start = 0" in said and f"{geometry}4096, start = 2048" in said, said
    assert "readonly      =  0 (off)" in said and "O_DIRECT disk reads" in said, said
    assert "gpt" in server.run(f"blockdev --flushbufs {device}; wipefs --noheadings {device}")
    client.run(f"wipefs --all --quiet {disk}p1 && wipefs --all --quiet {disk} && "
               f"blockdev --rereadpt {disk}")
    client.wait_until(f"[ ! -e {disk}p1 ]")
    assert server.run(f"blockdev --flushbufs {device}; wipefs --noheadings {device}") == ""
    client.run(f"blkdiscard -f {disk}")
    assert server.run(f"blockdev --flushbufs {device}; tr -d '\\0' < {device} | head -c 1") == ""
