# SPDX-License-Identifier: GPL-2.0
"""Checksums of data: a byte that soft-RoCE puts wrongly into memory, after its own check of the
packet, is found on either side, counted, and sent again; damaged data reaches no disk and no
reader.  A server that does not know checksums is refused."""

import errno
import os
import tempfile
from pathlib import Path

import pytest

from testbed import blockdev, exports, faults, fio, keyring
from testbed.blocktrace import BlockTrace
from testbed.hostile import launch
from testbed.lab import wait_for
from testbed.stack import STACKS

OURS, MAINLINE = STACKS["ibtrs"], STACKS["mainline"]
DISK, FILES = OURS.disk, "/sys/block/ibnbd0/ibnbd"
# In a capsule; through a registration and the server's chunk, with a key that is invalidated.
SIZES = (4096, 65536)
# More often than a request is sent.
ALWAYS = 1000
RESENDS = 3
# Before the second time, and before the third, in seconds.
PAUSES = (0.01, 0.1)
# How each of many ends that begin one after the other, and after which time.
SIMULTANEOUS_READS = f"""
import mmap, os, threading, time
disk = os.open("{DISK}", os.O_RDONLY | os.O_DIRECT)
def read(number):
    block, begin, error = mmap.mmap(-1, 4096), time.monotonic(), 0
    try:
        os.preadv(disk, [block], number << 16)
    except OSError as failed:
        error = failed.errno
    print(f"{{error}} {{time.monotonic() - begin}}\\n", end="", flush=True)
for number in range(16):
    threading.Thread(target=read, args=[number]).start()
"""


class Disk:
    """A disk of 16 MiB, mapped with checksums unless said otherwise."""

    def __init__(self, pair, checksum: str = "crc32c", links: int = 1, device: str = "", **features: int):
        """Of null_blk's with these features, files of its in configfs, unless another one is named."""
        self.server, self.client = pair
        self.device = device or self.server.null_blk(size_mb=16)
        if features:
            writes = " && ".join(f"echo {value} > {name}" for name, value in features.items())
            self.server.run(f"cd /sys/kernel/config/nullb/nullb0 && echo 0 > power && {writes} && echo 1 > power")
        blockdev.load(pair, OURS)
        paths = " ".join(f"path=ip:10.0.{link}.1" for link in range(1, links + 1))
        self.client.run(f'echo "sessname=s {paths} device_path={self.device} data_checksum={checksum}" > {OURS.map_file}')
        wait_for(lambda: blockdev.connected(self.client, "s") == links, 60, "all paths are connected")
        assert self.client.run(f"cat {FILES}/data_checksum") == checksum

    @property
    def errors(self) -> str:
        return self.client.run(f"cat {FILES}/checksum_errors")

    def write(self, size: int) -> str:
        """Writes other bytes than before; what dd complains about."""
        self.client.run(f"head -c {size} /dev/urandom > /tmp/data")
        return self.client.run(f"dd if=/tmp/data of={DISK} bs={size} count=1 oflag=direct status=none 2>&1", check=False)

    def read(self, size: int) -> str:
        return self.client.run(f"dd if={DISK} of=/tmp/back bs={size} count=1 iflag=direct status=none 2>&1", check=False)

    def is_written(self, size: int) -> bool:
        """Whether the server's disk has what was written last."""
        sums = [guest.run(f"{command} | sha256sum") for guest, command in (
            (self.client, "cat /tmp/data"),
            (self.server, f"dd if={self.device} bs={size} count=1 iflag=direct status=none"))]
        return len(set(sums)) == 1

    def is_read(self) -> bool:
        return self.client.run("cmp -s /tmp/data /tmp/back && echo same || echo other") == "same"

    def writes_of_the_server(self) -> int:
        return int(self.server.run(f"cat /sys/block/{os.path.basename(self.device)}/stat").split()[4])


class Flip:
    """Flips a bit of what arrives in a guest's memory, of pieces of at least 512 bytes: headers
    and messages are shorter."""

    FUNCTION, KIND = "rxe_mr_copy", "flip"

    def __init__(self, guest):
        self.guest = guest

    def __enter__(self) -> "Flip":
        faults.load(self.guest)
        self.guest.run(f"echo '{self.FUNCTION} {self.KIND} 1' > {faults.FOLDER}/functions")
        return self

    def times(self, count: int, what: int = 512) -> None:
        self.guest.run(f"echo '{self.FUNCTION} 1 {what} {count}' > {faults.FOLDER}/arm")

    @property
    def struck(self) -> int:
        return int(self.guest.run(f"cat {faults.FOLDER}/functions").split()[2])

    def __exit__(self, *_):
        self.guest.run("busybox rmmod ibtrs_faults")


def virtio(server) -> str:
    """A disk that writes zeroes, which null_blk does not."""
    handle, image = tempfile.mkstemp(".img", "checksums-", server.folder)
    os.truncate(handle, 16 << 20)
    os.close(handle)
    return server.add_disk(Path(image))


class FlipHeader(Flip):
    """Flips a bit of a request's headers, which are the end of what arrives at the server, but for the
    padding of a capsule with data."""

    KIND = "flipend"
    # Of the user's header and of the transport's, of a write and of a read without data.
    USER, OF_WRITE, OF_FLUSH = 32, 4, 8
    # Of the transport's header in a capsule with data, and its padding.
    OF_CAPSULE = 32

    # Of messages that are no I/O, and of the transport's header of a read with data.
    OPEN, CLOSE, OF_READ = 264, 8, 24

    def once(self, byte: int, bit: int, behind: int = OF_WRITE, user: int = USER) -> None:
        """This bit of a user header of the given length, which the transport header follows."""
        self.times(1, 8 * (user + behind - byte) + bit)


@pytest.fixture
def slow(request):
    """The kernel that has probes."""
    if request.config.getoption("kernel") not in ("debug", "kcsan"):
        pytest.skip("the kernel has no probes")


def test_damage_on_the_way_to_the_server(pair, slow):
    with Flip(pair.server) as flip:
        disk = Disk(pair)
        for number, size in enumerate(SIZES, 1):
            before = disk.writes_of_the_server()
            flip.times(1)
            assert disk.write(size) == ""
            assert flip.struck == 1
            assert disk.errors == f"{number} 0"
            # Only the one that was sent again.
            assert disk.writes_of_the_server() == before + 1
            assert disk.is_written(size)
        assert "message refused: request was damaged on the way here" in pair.server.run("dmesg")
        assert ("write at sector 0 was damaged on the way over ip:10.0.1.1 (checksum mismatch): sending it again"
                in pair.client.run("dmesg"))
        # Each time: nothing is written.
        for size in SIZES:
            before = disk.writes_of_the_server()
            flip.times(ALWAYS)
            assert os.strerror(errno.EILSEQ) in disk.write(size)
            assert flip.struck >= 1 + RESENDS
            assert disk.writes_of_the_server() == before
            assert not disk.is_written(size)
        assert disk.errors == f"{len(SIZES) + len(SIZES) * (1 + RESENDS)} 0"
        assert "failed: it was damaged on the way each time" in pair.client.run("dmesg")
        flip.times(0)
        assert disk.write(SIZES[0]) == "" and disk.is_written(SIZES[0])
        pair.client.run(f"echo 0 > {FILES}/checksum_errors")
        assert disk.errors == "0 0"
        pair.client.run(OURS.unmap())


def test_damage_on_the_way_from_the_server(pair, slow):
    with Flip(pair.client) as flip:
        disk = Disk(pair)
        for number, size in enumerate(SIZES, 1):
            assert disk.write(size) == ""
            flip.times(1)
            assert disk.read(size) == ""
            assert flip.struck == 1
            assert disk.is_read()
            assert disk.errors == f"0 {number}"
        flip.times(ALWAYS)
        for size in SIZES:
            assert os.strerror(errno.EILSEQ) in disk.read(size)
        assert disk.errors == f"0 {len(SIZES) + len(SIZES) * (1 + RESENDS)}"
        # However many there are: what one of them does ends no pause of another.
        ends = [line.split() for line in pair.client.run(f"python3 -c '{SIMULTANEOUS_READS}'").splitlines()]
        assert len(ends) == 16 and {int(error) for error, _ in ends} == {errno.EILSEQ}, ends
        assert min(float(seconds) for _, seconds in ends) >= sum(PAUSES), ends
        flip.times(0)
        assert disk.read(SIZES[-1]) == "" and disk.is_read()
        pair.client.run(OURS.unmap())


# A bit of the headers: it makes a CLOSE of the request, which is answered as a write is; others make
# another request of it, or none; the length and the direction that only the transport's header has.
HEADER_BITS = {"to CLOSE": (0, 0), "no type": (0, 3), "device": (4, 0), "sector": (9, 1), "operation": (16, 1),
               "no operation": (16, 7), "no flag": (19, 0), "no checksum": (17, 4), "length": (21, 2),
               "checksum": (28, 6), "length of the header": (34, 2), "direction": (32, 0), "no direction": (32, 4)}


@pytest.mark.parametrize("capsules", "YN")
def test_damaged_headers(pair, slow, capsules):
    """Whatever damage makes of a request: nothing is executed, it is sent again, and the disk can
    do afterwards what it could before."""
    pair.server.run(f"modprobe {OURS.transport('server')} capsules={capsules}")
    with FlipHeader(pair.server) as flip:
        of_write = {"Y": flip.OF_CAPSULE, "N": flip.OF_WRITE}[capsules]
        disk = Disk(pair, discard=1)
        limits = "cat /sys/block/ibnbd0/queue/discard_max_bytes"
        able = pair.client.run(limits)
        assert int(able)
        found = 0

        def seen(what: str) -> None:
            assert flip.struck == 1, what
            assert disk.errors == f"{found} 0", what

        for name, (byte, bit) in HEADER_BITS.items():
            before, found = disk.writes_of_the_server(), found + 1
            flip.once(byte, bit, of_write)
            assert disk.write(4096) == "", name
            seen(name)
            assert disk.writes_of_the_server() == before + 1, name
            assert disk.is_written(4096), name
            found += 1
            flip.once(byte, bit)
            pair.client.run(f"blkdiscard -f -o 1M -l 64k {DISK}")
            seen(f"discard, {name}")
            assert pair.client.run(limits) == able, name
        flip.times(0)
        lines = pair.server.run("dmesg")
        assert "closed: by its client" not in lines and "which is not open" not in lines
        assert disk.read(4096) == "" and disk.is_written(4096)
        pair.client.run(OURS.unmap())


def test_other_operations_are_checked(pair, slow):
    """Requests without data, too, are refused if their checksum is wrong."""
    with FlipHeader(pair.server) as flip:
        # Of the checksum itself.
        byte, bit = 28, 0
        disk = Disk(pair, cache_size=16)
        pair.client.run(f"dd if=/dev/urandom of={DISK} bs=4k count=1 oflag=direct status=none")
        flip.once(byte, bit, flip.OF_FLUSH)
        pair.client.run(f"sync {DISK}")
        assert (flip.struck, disk.errors) == (1, "1 0")
        zeroes = virtio(pair.server)
        pair.client.run(f'echo "sessname=s device_path={zeroes} data_checksum=crc32c" > {OURS.map_file}')
        flip.once(byte, bit)
        pair.client.run("blkdiscard -f -z -o 1M -l 64k /dev/ibnbd1")
        assert (flip.struck, pair.client.run("cat /sys/block/ibnbd1/ibnbd/checksum_errors")) == (1, "1 0")
        others_of_the_session(pair, flip)
        pair.client.run(f"{OURS.unmap(1)}; {OURS.unmap()}")


def others_of_the_session(pair, flip: FlipHeader) -> None:
    """Requests of a disk without checksums, and messages, are sent again if damage is found; what an
    OPEN asks for counts only if the server confirms it."""
    plain = pair.server.null_blk("nullb1", size_mb=16)

    def map_other(checksum: str) -> str:
        return pair.client.run(f'echo "sessname=s device_path={plain} data_checksum={checksum}" > {OURS.map_file}', check=False)

    # The name's padding; then it is the bit that asks for checksums, which nothing covers.
    flip.once(200, 0, flip.OF_READ, flip.OPEN)
    assert (map_other("none"), flip.struck) == ("", 1)
    # The header's padding.
    flip.once(26, 0, flip.OF_CAPSULE)
    pair.client.run("dd if=/dev/zero of=/dev/ibnbd2 bs=4k count=1 oflag=direct status=none")
    assert (flip.struck, pair.client.run("cat /sys/block/ibnbd2/ibnbd/checksum_errors")) == (1, "1 0")
    # The type.
    flip.once(0, 3, flip.OF_WRITE, flip.CLOSE)
    pair.client.run(OURS.unmap(2))
    assert flip.struck == 1
    assert f"device {plain}: closed: by its client" in pair.server.run("dmesg")
    for checksum, error in (("none", errno.EPROTO), ("crc32c", errno.EOPNOTSUPP)):
        flip.once(5, 2, flip.OF_READ, flip.OPEN)
        assert os.strerror(error) in map_other(checksum) and flip.struck == 1
        assert not blockdev.is_taken(pair.server, plain)
    assert map_other("crc32c") == ""
    pair.client.run("dd if=/dev/zero of=/dev/ibnbd2 bs=4k count=1 oflag=direct status=none")
    pair.client.run(OURS.unmap(2))


def test_damage_counts_towards_the_limits_of_a_host(pair, slow):
    """The server examines no more data of a host than it would write for it."""
    server, client = pair
    for guest in pair:
        keyring.load(guest)
    with Flip(server) as flip:
        server.null_blk(size_mb=16)
        server.run("modprobe ibnbd_server")
        exports.make_host(server, max_bandwidth_mib_s=1)
        exports.make(server, "disk1", "/dev/nullb0", ("demo",))
        client.run(OURS.load_client())
        client.run(f'echo "sessname=demo path=ip:10.0.1.1 device_path=disk1 data_checksum=crc32c" > {OURS.map_file}')
        flip.times(ALWAYS)
        writes, size = 6, SIZES[1]
        since = client.uptime()
        for _ in range(writes):
            said = client.run(f"dd if=/dev/zero of={DISK} bs={size} count=1 oflag=direct status=none 2>&1", check=False)
            assert os.strerror(errno.EILSEQ) in said
        # An idle host is ahead by one request and 50 ms.
        sent = writes * (1 + RESENDS) - 1
        assert client.uptime() - since >= sent * size / 2**20 - 0.06
        client.run(OURS.unmap())


@pytest.mark.fast
@pytest.mark.rdma("rxe")
def test_nonsense_with_a_checksum_counts_towards_the_limits_of_a_host(pair):
    """The server examines the data before it knows that the message is none."""
    server, client = pair
    keyring.load(server)
    server.null_blk(size_mb=16)
    server.run("modprobe ibnbd_server")
    exports.make_host(server, max_bandwidth_mib_s=1)
    exports.make(server, "disk1", "/dev/nullb0", ("demo",))
    messages, size = 8, SIZES[1]
    said = launch.program(client, f"""
from testbed.hostile.auth import *
from testbed.hostile.checksum import COVERED, sealed, trailer
with KeyHolder({keyring.secret("right")!r}, "demo", cid_num=3) as me:
    me.set_up()
    me.sess_info()
    device, data = me.open("disk1", flags=wire.CHECKSUMS), bytes({size})
    # Of no type, and with no operation.
    for at, bit in ((0, 8), (16, 0x80)):
        user = bytearray(sealed(data, device_id=device, rw=wire.WRITE, bytes={size}))
        user[at] ^= bit
        user = user[:COVERED] + trailer(bytes(user), data)
        begin = time.monotonic()
        for _ in range({messages}):
            me.post_write(me.io, 1, bytes(user), data)
            print(errno.errorcode[me.answer(me.io, 1)])
        print(time.monotonic() - begin, flush=True)
""").wait(120).splitlines()
    assert len(said) == 2 * (messages + 1), said
    for answers in (said[:messages + 1], said[messages + 1:]):
        assert len(set(answers[:-1])) == 1 and "EBADMSG" not in answers, said
        # An idle host is ahead by one request and 50 ms.
        assert float(answers[-1]) >= (messages - 1) * size / 2**20 - 0.06, said


@pytest.mark.links(2)
def test_another_path_is_tried(pair, slow):
    """A request that one path damages each time gets over another one, whichever the policy likes;
    the client names the path that did it."""
    with Flip(pair.client) as flip:
        disk = Disk(pair, links=2)
        files = "/sys/class/ibtrs-client/s"
        names = pair.client.run(f"cd {files}/paths && ls").split()
        assert disk.write(SIZES[1]) == ""
        for policy in ("min-latency", "min-inflight", "round-robin"):
            pair.client.run(f"echo {policy} > {files}/mp_policy; dmesg -C")
            flip.times(1)
            assert disk.read(SIZES[0]) == ""
            log = pair.client.run("dmesg")
            # As the operator has named it.
            first = [name for name in names if f"damaged on the way over {name.split('@')[-1]} (" in log]
            assert len(first) == 1, log
            reads = {name: reads_over(pair.client, name) for name in names}
            flip.times(1)
            assert disk.read(SIZES[0]) == ""
            # Two sent in all, one over each.
            assert {name: reads_over(pair.client, name) - reads[name] for name in names} == dict.fromkeys(names, 1)
        pair.client.run(OURS.unmap())


def reads_over(client, path: str) -> int:
    return int(client.run(f"cat /sys/class/ibtrs-client/s/paths/{path}/stats/rdma").split()[0])


def test_without_checksums_damage_stays(pair, slow):
    """Without checksums, the damage of the other scenarios reaches the disk and readers."""
    with Flip(pair.server) as flip:
        disk = Disk(pair, "none")
        for size in SIZES:
            flip.times(1)
            assert disk.write(size) == ""
            assert flip.struck == 1
            assert not disk.is_written(size)
        assert disk.errors == "0 0"
        pair.client.run(OURS.unmap())


@pytest.mark.fast
@pytest.mark.links(2)
def test_verify_while_paths_fail(pair):
    """Requests that are sent again over another path have the right checksum, too."""
    disk = Disk(pair, links=2)
    files = "/sys/class/ibtrs-client/s/paths"
    assert pair.client.run("cat /sys/block/ibnbd0/queue/stable_writes") == "1"
    load = pair.client.start(
        f"fio --name=load --filename={DISK} --rw=randrw --bsrange=4k-128k --size=12m --iodepth=8 --direct=1 "
        f"--ioengine=io_uring --time_based --runtime=600 --verify=crc32c --verify_fatal=1 {fio.IN_BURSTS}")
    for link in (1, 2, 1):
        path = f"{files}/ip:10.0.{link}.2@ip:10.0.{link}.1"
        wanted = ios(pair.client) + 60
        wait_for(lambda: ios(pair.client) >= wanted, 60, "I/O goes on")
        pair.client.run(f"echo 1 > {path}/disconnect")
        wanted = ios(pair.client) + 60
        wait_for(lambda: ios(pair.client) >= wanted, 60, "I/O goes on over the other path")
        pair.client.run(f"echo 1 > {path}/reconnect")
        pair.client.wait_until(f"grep -q '^connected' {path}/state")
    assert load.running, load.text
    load.kill()
    load.wait(60, check=False)
    # A file system's pages, too: those of mapped files, which change at any time.
    fio.run(pair.client, f"--name=cached --filename={DISK} --rw=randwrite --bs=4k --size=4m --ioengine=mmap "
                         "--numjobs=2 --loops=2 --fsync=16", timeout=300)
    assert disk.errors == "0 0"
    assert blockdev.same_on_both(pair, disk.device, DISK, 12)
    pair.client.run(OURS.unmap())


def ios(client) -> int:
    fields = client.run("cat /sys/block/ibnbd0/stat").split()
    return int(fields[0]) + int(fields[4])


@pytest.mark.fast
def test_other_operations(pair):
    """Flushes, discards and zeroes have a checksum of their header, or the server would refuse
    them; a disk without checksums of the same session has none."""
    disk = Disk(pair, discard=1, cache_size=16)
    zeroes = virtio(pair.server)
    pair.client.run(f'echo "sessname=s device_path={zeroes} data_checksum=crc32c" > {OURS.map_file}')
    other = pair.server.null_blk("nullb1", size_mb=16)
    pair.client.run(f'echo "sessname=s device_path={other}" > {OURS.map_file}')
    trace = BlockTrace(pair.server, disk.device)
    assert disk.write(4096) == ""
    pair.client.run(f"blkdiscard -f -o 1M -l 1M {DISK} && sync {DISK}")
    trace.stop()
    bios = trace.bios()
    assert any(bio.what.startswith("D") and (bio.sector, bio.sectors) == (2048, 2048) for bio in bios), bios
    assert any(bio.what.startswith("F") and not bio.sectors for bio in bios), bios
    trace = BlockTrace(pair.server, zeroes)
    pair.client.run("blkdiscard -f -z -o 2M -l 1M /dev/ibnbd1")
    trace.stop()
    bios = trace.bios()
    assert any(bio.what.startswith("WZ") and (bio.sector, bio.sectors) == (4096, 2048) for bio in bios), bios
    assert pair.client.run("cat /sys/block/ibnbd2/ibnbd/data_checksum /sys/block/ibnbd2/queue/stable_writes") == "none\n0"
    pair.client.run("dd if=/dev/urandom of=/dev/ibnbd2 bs=64k count=16 oflag=direct status=none")
    assert blockdev.same_on_both(pair, other, "/dev/ibnbd2", 1)
    for number in range(3):
        assert pair.client.run(f"cat /sys/block/ibnbd{number}/ibnbd/checksum_errors") == "0 0"
    pair.client.run(f"{OURS.unmap(2)}; {OURS.unmap(1)}; {OURS.unmap()}")
    # CLOSE has no checksum, and reaches the server.
    assert "closed: by its client" in pair.server.run("dmesg")


@pytest.mark.fast
@pytest.mark.links(2)
def test_cancelled_requests_are_no_damage(pair):
    """A request that was cancelled has no data and no header any more when it is sent over another
    path; the server refuses what is left of it, and nobody takes that for damage."""
    server, client = pair
    server.null_blk(size_mb=16)
    stuck = blockdev.StuckDisk(server, "/dev/nullb0")
    disk = Disk(pair, links=2, device=stuck.device)
    paths = "/sys/class/ibtrs-client/s/paths"
    client.run("echo round-robin > /sys/class/ibtrs-client/s/mp_policy")
    client.run("echo 1000 > /sys/block/ibnbd0/queue/io_timeout; echo 1 > /sys/block/ibnbd0/ibnbd/io_timeout_limit")
    with stuck.suspended():
        # Enough requests for each of the two processors to send some over each path.
        jobs = [client.start(f"dd if={what} of={where} bs=4k count=1 {how}=direct status=none")
                for what, where, how in 2 * ((DISK, "/dev/null", "iflag"), ("/dev/zero", DISK, "oflag"))]
        for job in jobs:
            assert os.strerror(errno.ETIMEDOUT) in job.wait(60, check=False)
        # It cannot be back before the server's disk is: the server still has its requests.
        client.run(f"echo 1 > {paths}/ip:10.0.1.2@ip:10.0.1.1/disconnect")
    client.wait_until(f"dd if={DISK} of=/dev/null bs=4k count=1 iflag=direct status=none", 60)
    assert "message shorter than its format" in server.run("dmesg")
    assert "damaged" not in server.run("dmesg") + client.run("dmesg")
    assert disk.errors == "0 0"
    client.run(OURS.unmap())
    stuck.remove()


@pytest.mark.fast
@pytest.mark.quiet
def test_a_server_without_checksums_is_refused(pair):
    server, client = pair
    device = server.null_blk(size_mb=16)
    server.run(MAINLINE.load_server())
    client.run(OURS.load_client())
    line = f"sessname=s path=ip:10.0.1.1 device_path={device.removeprefix('/')}"
    refused = client.run(f'echo "{line} data_checksum=crc32c" > {OURS.map_file}', check=False)
    assert os.strerror(errno.EOPNOTSUPP) in refused
    assert "the server does not know data_checksum: update it, or map the device without" in client.run("dmesg")
    assert blockdev.disks(client, OURS) == []
    # And the device is not left open: it can be mapped without.
    client.run(f'echo "{line}" > {OURS.map_file}')
    client.run(OURS.unmap())
