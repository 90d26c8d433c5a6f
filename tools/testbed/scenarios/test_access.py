# SPDX-License-Identifier: GPL-2.0
"""The server decides about each request of a client, even if the client ignores the access mode."""

import errno
import os

import pytest

from testbed import blockdev
from testbed.hostile import launch
from testbed.lab import wait_for

pytestmark = pytest.mark.fast
# Raw messages, and mainline, need immediates, which soft-iWARP does not have.
needs_immediates = pytest.mark.rdma("rxe")


def start_raw(client, program: str):
    """Starts a program with a client of its own."""
    client.run("rm -f /tmp/go")
    return launch.program(client, "client = RawClient(ADDRESS, 'raw')\n" + program)


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
# The same program, where it may write: in another session.
other = RawClient(ADDRESS, "other")
writer = other.open("nullb0", RW)
print(other.submit(writer, WRITE, 8))
print(client.submit(reader, WRITE, 16))
""")
    assert said == ["OK", "OK"] + ["EROFS"] * 7 + ["OK", "EROFS"]
    assert server.run(f"dd if={device} bs=4k count=3 iflag=direct status=none | tr -d x | wc -c").strip() == "4096"
    assert "I/O refused: device is read-only" in server.run("dmesg")


def test_a_device_that_becomes_read_only(pair, stack):
    """The server checks for each request whether the device is read-only, not only at OPEN."""
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


# The result of an attempt to open: a number, or the name of an error.
TRY = """
def attempt(name, mode=RO, by=None):
    try:
        return (by or client).open(name, mode)
    except OSError as error:
        return errno.errorcode[error.errno]
"""


@needs_immediates
def test_a_device_has_one_name_in_a_session(pair, stack):
    """Names are without number, so that each must not cost the server an open, a
    table entry and a directory."""
    server, client = pair
    server.null_blk("nullb0", size_mb=16)
    server.run(f"ln -sfn nullb0 /dev/alias && ln -sfn . /dev/again && {stack.load_server()}")
    job = start_raw(client, TRY + """
disk = client.open("nullb0", RO)
print(client.open("nullb0", RO) == disk, attempt("nullb0", RW))
names = ["/nullb0", "./nullb0", "/dev/nullb0", "alias"] + ["again/" * deep + "nullb0" for deep in range(1, 30)]
print(*{attempt(name, mode) for name in names for mode in (RO, RW, MIGRATION)}, flush=True)
while not os.path.exists("/tmp/go"):
    time.sleep(0.1)
# The one that it has is whole, and the others are free once that is closed.
print(client.submit(disk, READ), client.close(disk), client.submit(disk, READ))
other = client.open("alias", MIGRATION)
print(other != disk, client.submit(other, WRITE), attempt("nullb0"))
""")
    wait_for(lambda: "EEXIST" in job.text, 120, "the names were refused")
    assert server.run("ls /sys/class/ibnbd-server/ctl/devices/nullb0/sessions").split() == ["raw"]
    assert "the session has it open by another name (EEXIST)" in server.run("dmesg")
    client.run("touch /tmp/go")
    assert job.wait(60).splitlines() == ["True EPERM", "EEXIST", "OK 0 ENOTCONN", "True OK EEXIST"]
    server.run("rm /dev/alias /dev/again")


@needs_immediates
def test_a_session_has_a_limited_number_of_devices(pair, stack):
    server, client = pair
    for number in range(4):
        server.null_blk(f"nullb{number}", size_mb=16)
    server.run(f"{stack.load_server()} max_devices=3")
    said = raw(client, TRY + """
disks = [client.open(f"nullb{number}", RO) for number in range(3)]
print(attempt("nullb3"), client.open("nullb1", RO) == disks[1], [client.submit(disk, READ) for disk in disks])
# Each session has its own.
other = RawClient(ADDRESS, "other")
print(other.submit(attempt("nullb3", by=other), READ))
# In any order of numbers I/O finds its device.
client.close(disks[1])
new = client.open("nullb3", RO)
print(new not in disks, [client.submit(disk, READ) for disk in disks + [new]], attempt("nullb1"))
""")
    assert said == ["ENOSPC True ['OK', 'OK', 'OK']", "OK", "True ['OK', 'ENOTCONN', 'OK', 'OK'] ENOSPC"]
    assert "the session already has max_devices devices open or being closed (ENOSPC)" in server.run("dmesg")
    for wrong in ("0", "65537"):
        server.run("modprobe -r ibnbd_server")
        assert not server.ok(f"{stack.load_server()} max_devices={wrong}")


# Requests with any header: one and its answer, or the same in many chunks.
REQUESTS = """
def write(by, header, chunk, data=b""):
    client.post_write(by, chunk, header, data)
    return client.answer(by, chunk)

def read(by, header, chunk, want):
    client.home.memory.put(0, bytes(want))
    client.post_read(by, chunk, header, want)
    return client.answer(by, chunk), client.returned(want)

def flood(by, header, chunks, want=0):
    for chunk in chunks:
        client.post_read(by, chunk, header, want) if want else client.post_write(by, chunk, header)

def answers(by, count):
    return {code(client.answer_any(by, 60)) for _ in range(count)}

def code(error):
    return errno.errorcode.get(error, "OK")

def opening(name):
    return wire.OPEN_REQ.pack(dev_name=name.encode(), access_mode=RO)
"""


@needs_immediates
def test_no_answer_has_what_the_memory_held(pair, stack):
    """A message of each type, as a READ with room for more than its answer and as a
    WRITE, in memory that a request before has filled."""
    server, client = pair
    server.null_blk(size_mb=16)
    server.run(stack.load_server())
    said = raw(client, REQUESTS + """
disk = client.open("nullb0", RO)
io = lambda op, length: client.io_header(disk, op, 0, length)
messages = {
    "info": wire.SESS_INFO_REQ.pack(ver=2), "open": opening("nullb0"), "nothing": opening("nothing"),
    "close": wire.CLOSE_REQ.pack(device_id=(disk + 1000) % (1 << 32)),
    "read": io(READ, 4096), "short read": io(READ, 512), "flush": io(FLUSH, 0), "write": io(WRITE, 4096),
    "discard": io(DISCARD, 4096), "answer": bytes([3]) + bytes(55), "unknown": bytes([99]) + bytes(35)}
secret = bytes([0xA5]) * 4096
chunk = 2
for want in (4096, 32768):
    for name, header in messages.items():
        # Each time another chunk: for the long ones its key changes.
        chunk += 1
        write(client.io, messages["unknown"], chunk, secret)
        error, answer = read(client.io, header, chunk, want)
        # A number of the device may have one such byte.
        print(want, name, code(error), answer.count(secret[:3]))
for name in ("info", "open", "close"):
    print(name, code(write(client.io, messages[name], 1)))
""")
    due = {"info": "OK", "open": "OK", "nothing": "ENOENT", "4096 read": "OK", "write": "EROFS", "discard": "EROFS"}
    for line in said[:-3]:
        want, *name, result, stale = line.split()
        name = " ".join(name)
        assert (result, stale) == (due.get(name, due.get(f"{want} {name}", "EINVAL")), "0"), line
    assert len(said) == 2 * 11 + 3 and said[-3:] == ["info EINVAL", "open EINVAL", "close OK"]


# Workers that wait for a lock or a disk.
STUCK_WORKERS = "ps -eo stat,comm | grep -c '^D.*kworker' || true"


def slow_disk(server, name: str, seconds: int) -> str:
    """A disk that takes its time for each request."""
    return server.null_blk(name, size_mb=16, slow_ns=seconds * 1_000_000_000)


@needs_immediates
def test_a_flood_of_messages_has_one_worker(pair, stack):
    """Openers queue for a disk that is being opened, which takes as long as one of its
    reads does; the client sends fifty more."""
    server, client = pair
    server.null_blk("nullb1", size_mb=16)
    device = slow_disk(server, "nullb0", 8)
    server.run(stack.load_server())
    job = start_raw(client, REQUESTS + """
print("ready", flush=True)
while not os.path.exists("/tmp/go"):
    time.sleep(0.1)
flood(client.io, opening("nullb0"), [1], 56)
time.sleep(0.5)
flood(client.service, opening("nowhere"), range(2, 52), 56)
print("sent", flush=True)
print(answers(client.io, 1), answers(client.service, 50))
""")
    wait_for(lambda: "ready" in job.text, 120, "the client is ready")
    # It reads the partition table, under the lock that openers take.
    rereading = server.start(f"blockdev --rereadpt {device}")
    server.wait_until("ps -eo stat,comm | grep -q '^D.*blockdev'")
    client.run("touch /tmp/go")
    wait_for(lambda: "sent" in job.text, 60, "all were sent")
    stuck = int(server.run(f"sleep 0.5; {STUCK_WORKERS}"))
    assert rereading.running
    assert 1 <= stuck < 5, stuck
    # Its result does not matter: the disk is in use by then.
    rereading.wait(120, check=False)
    assert job.wait(120).splitlines()[-1] == "{'OK'} {'ENOENT'}"


@needs_immediates
def test_closing_a_slow_device_keeps_no_message_waiting(pair, stack):
    server, client = pair
    server.null_blk("nullb1", size_mb=16)
    slow_disk(server, "nullb0", 8)
    server.run(stack.load_server(), timeout=300)
    said = raw(client, REQUESTS + """
disk = client.open("nullb0", RO)
flood(client.io, client.io_header(disk, READ), [1], 4096)
flood(client.service, wire.CLOSE_REQ.pack(device_id=disk), [2])
began = time.monotonic()
print(read(client.io, opening("nullb1"), 3, 56)[0], time.monotonic() - began < 4)
print(answers(client.service, 1), time.monotonic() - began > 4)
""")
    assert said == ["0 True", "{'OK'} True"]


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
    # A user that is not alone cannot be exclusive.
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
