# SPDX-License-Identifier: GPL-2.0
"""What a client may do to a device is the server's to decide, request for request,
whatever the client thinks of it."""

import errno
import os
from pathlib import Path

import pytest

from testbed import blockdev
from testbed.lab import wait_for

pytestmark = pytest.mark.fast
# Raw messages, and mainline, need immediates, which soft-iWARP does not have.
needs_immediates = pytest.mark.rdma("rxe")

RAW = Path(__file__).with_name("rawclient.py")


def start_raw(client, program: str):
    """Starts a program with a client of its own."""
    client.push("/tmp/rawclient.py", RAW.read_text())
    client.push("/tmp/program.py", "from rawclient import *\nclient = RawClient('10.0.1.1', 'raw')\n" + program)
    return client.start("rm -f /tmp/go; modprobe -a ib_uverbs rdma_ucm && python3 /tmp/program.py")


def raw(client, program: str) -> list[str]:
    """The same; returns the lines that it prints."""
    return start_raw(client, program).wait(120).splitlines()


@needs_immediates
def test_a_mode_that_the_client_ignores(pair, stack):
    server, client = pair
    device = server.null_blk(size_mb=16)
    server.run(f"head -c 64k /dev/zero | tr '\\0' x > {device}")
    server.run(stack.load_server())
    said = raw(client, """
reader = client.open("/dev/nullb0", RO)
for op in (READ, FLUSH, WRITE, WRITE | FUA, WRITE | PREFLUSH, DISCARD, SECURE_ERASE, WRITE_ZEROES, WRITE_ZEROES | NOUNMAP):
    print(client.submit(reader, op, length=0 if op == FLUSH else 4096))
# The same program, where it may write: by another name for the device.
writer = client.open("nullb0", RW)
print(client.submit(writer, WRITE, 8), writer != reader)
print(client.submit(reader, WRITE, 16))
""")
    assert said == ["OK", "OK"] + ["EROFS"] * 7 + ["OK True", "EROFS"]
    assert server.run(f"dd if={device} bs=4k count=3 iflag=direct status=none | tr -d x | wc -c").strip() == "4096"
    assert "I/O refused: device is read-only" in server.run("dmesg")


def test_a_device_that_becomes_read_only(pair, stack):
    """It is looked at for each request, and not when it was opened."""
    server, client = pair
    device = blockdev.map_new(pair, stack, size_mb=16)
    write = f"dd if=/dev/zero of={stack.disk} bs=4k count=1 oflag=direct status=none"
    client.run(write)
    server.run(f"blockdev --setro {device}")
    assert not client.ok(write)
    assert not client.ok(f"blkdiscard -z {stack.disk} -l 64k")
    client.run(f"dd if={stack.disk} of=/dev/null bs=4k count=1 iflag=direct status=none")
    server.run(f"blockdev --setrw {device}")
    client.run(write)


@needs_immediates
def test_requests_for_a_device_that_was_closed(pair, stack):
    server, client = pair
    first, second = server.null_blk("nullb0", size_mb=16), server.null_blk("nullb1", size_mb=16)
    server.run(stack.load_server())
    said = raw(client, f"""
old = client.open("{first}", RW)
print(client.submit(old, WRITE), client.close(old), client.close(old))
seen = set([old])
for round in range(8):
    new = client.open("{second}", RW)
    # No number is used again, so what comes late hits nothing.
    print(new in seen, client.submit(old, WRITE, 64), client.submit(new, READ))
    seen.add(new)
    client.close(new)
print(client.submit(12345, READ))
""")
    assert said == ["OK 0 0"] + ["False ENOTCONN OK"] * 8 + ["ENOTCONN"]
    assert server.run(f"tr -d '\\0' < {second} | wc -c").strip() == "0"


@needs_immediates
def test_requests_for_a_device_that_was_closed_by_force(pair, stack):
    server, client = pair
    first, second = server.null_blk("nullb0", size_mb=16), server.null_blk("nullb1", size_mb=16)
    server.run(stack.load_server())
    job = start_raw(client, f"""
old = client.open("{first}", RW)
print(client.submit(old, WRITE), flush=True)
while not os.path.exists("/tmp/go"):
    time.sleep(0.1)
new = client.open("{second}", RW)
print(client.submit(old, WRITE, 64), client.submit(new, READ), client.open("{first}", RW) in (old, new))
""")
    closing = "/sys/class/ibnbd-server/ctl/devices/nullb0/sessions/raw/force_close"
    server.wait_until(f"[ -e {closing} ]")
    wait_for(lambda: "OK" in job.text, 60, "the device was written to")
    server.run(f"echo 1 > {closing}")
    client.run("touch /tmp/go")
    assert job.wait(60).splitlines() == ["OK", "ENOTCONN OK False"]
    assert server.run(f"tr -d '\\0' < {second} | wc -c").strip() == "0"


@needs_immediates
def test_requests_that_make_no_sense(pair, stack):
    server, client = pair
    server.null_blk(size_mb=1, block_size=4096)
    server.run(stack.load_server())
    said = raw(client, """
disk = client.open("nullb0", RW)
print(client.submit(disk, WRITE, 2040), client.submit(disk, WRITE, 2048), client.submit(disk, READ, 1 << 62))
print(client.submit(disk, WRITE, 1), client.submit(disk, WRITE, 0, 512), client.submit(disk, DISCARD, 0, 1 << 20 | 512))
print(client.submit(disk, WRITE, 0, 8192, bytes(4096)), client.submit(disk, WRITE, 0, 4096, b""))
print(client.submit(disk, 9), client.submit(disk, WRITE | 1 << 20), client.submit(disk, DISCARD | FUA))
print(client.submit(disk, WRITE_ZEROES, 0, 0), client.submit(disk, FLUSH, 0, 4096), client.submit(disk, FLUSH, 99, 0))
""")
    assert said == ["OK EIO EIO", "EINVAL EINVAL EINVAL", "EINVAL EINVAL", "ENOTSUP ENOTSUP EINVAL",
                    "EINVAL EINVAL OK"]


MAP = 'echo "sessname={} path=ip:10.0.1.1 device_path=nullb0 access_mode={} exclusive={}" > {}'


def test_exclusive_use(pair, stack):
    server, client = pair
    device = server.null_blk(size_mb=16)
    blockdev.load(pair, stack)
    busy = os.strerror(errno.EBUSY)

    def map_it(session: str, mode: str, exclusive: int):
        return client.run(MAP.format(session, mode, exclusive, stack.map_file), check=False)

    mount = f"mkdir -p /mnt/disk && mount {device} /mnt/disk"
    server.run(f"mkfs.ext4 -q {device}")
    assert map_it("one", "ro", 1).ok
    assert client.run(f"cat /sys/block/{stack.family}0/{stack.family}/exclusive").strip() == "1"
    # Neither readers nor writers, nor the server itself.
    for mode in ("ro", "rw", "migration"):
        assert busy in map_it("two", mode, 0) and busy in map_it("two", mode, 1)
    assert blockdev.is_taken(server, device) and not server.ok(mount)
    client.run(stack.unmap())
    # Who is not alone cannot be.
    assert map_it("two", "ro", 0).ok
    assert client.run(f"cat /sys/block/{stack.family}0/{stack.family}/exclusive").strip() == "0"
    assert busy in map_it("one", "rw", 1)
    client.run(stack.unmap())
    server.run(mount)
    assert busy in map_it("one", "ro", 1)
    server.run("umount /mnt/disk")
    assert map_it("one", "rw", 1).ok
    assert "rw, exclusive" in server.run("dmesg | tail -n 3")


@needs_immediates
def test_mainline_knows_no_exclusive_use(pair, stack):
    server, client = pair
    server.null_blk(size_mb=16)
    server.run("modprobe rnbd_server dev_search_path=/dev")
    client.run(stack.load_client())
    refused = client.run(MAP.format("s", "rw", 1, stack.map_file), check=False)
    assert os.strerror(errno.EOPNOTSUPP) in refused
    client.run(MAP.format("s", "rw", 0, stack.map_file))
