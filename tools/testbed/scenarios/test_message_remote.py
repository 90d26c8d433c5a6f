# SPDX-License-Identifier: GPL-2.0
"""Examples whose programs are on two machines, use each other's memory, and do not notice that paths are lost."""

import re
import time

import pytest

from testbed import blockdev, keyring, message_programs
from testbed.lab import wait_for
from testbed.message_programs import bound
from testbed.tool import c_example

pytestmark = [pytest.mark.links(2), pytest.mark.fast]

PATH = "/sys/class/ibtrs-client/demo/paths/ip:10.0.{0}.2@ip:10.0.{0}.1"


@pytest.fixture
def session(pair, stack):
    """Two paths of machines that have proved a key."""
    for guest in pair:
        keyring.load(guest)
        guest.run("modprobe ibmsg")
    blockdev.map_two_paths(pair, stack)


def start(guest, command: str):
    """A program that has bound a portal."""
    program = guest.start(f"exec {command} 2>&1")
    bound(guest)
    return program


def lose_paths(pair, links=(1, 2)) -> None:
    """Each path in turn; there is always another one."""
    for link in links:
        path = PATH.format(link)
        pair.client.run(f"echo 1 > {path}/disconnect && sleep 0.2 && echo 1 > {path}/reconnect")
        wait_for(lambda: blockdev.connected(pair.client) == 2, 60, "both paths are connected")


def test_keys_and_values_by_get(pair, session):
    """A client that reads a slot while the server writes it never has half of a value."""
    program = c_example(pair.server, "kv")
    assert c_example(pair.client, "kv") == program
    server = start(pair.server, f"{program} serve kv")
    pair.client.run(f"{program} set demo kv colour blue && {program} set demo kv number {'7' * 200}")
    assert pair.client.run(f"{program} get demo kv colour") == "blue"
    assert pair.client.run(f"{program} get demo kv number") == "7" * 200
    pair.client.run(f"{program} set demo kv colour red")
    assert pair.client.run(f"{program} get demo kv colour") == "red"
    assert "no such key" in pair.client.run(f"{program} get demo kv taste 2>&1", check=False)
    assert "Message too long" in pair.client.run(f"{program} set demo kv long {'7' * 300} 2>&1", check=False)
    # What the watchers find at first is a counted value too.
    pair.client.run(f"{program} count demo kv number 1")
    writer = pair.client.start(f"exec {program} count demo kv number 2000 2>&1")
    watchers = [pair.client.start(f"exec {program} watch demo kv number 2000 2>&1") for _ in range(2)]
    lose_paths(pair)
    for job in (writer, *watchers):
        assert job.wait(200).ok, job.text
    assert writer.text == "2000 values\n"
    for watcher in watchers:
        gets, values, _ = map(int, re.findall(r"\d+", watcher.text))
        assert gets == 2000 and values > 10, watcher.text
    # Clients that have gone have no place.
    pair.server.wait_until("[ $(ls -l /proc/[0-9]*/fd 2> /dev/null | grep -c ibmsg-channel) = 0 ]", 60)
    server.kill()


def test_a_log_by_put(pair, session):
    """What the log has is what was written, in order, although paths are lost; a writer that is killed leaves a part."""
    program = c_example(pair.server, "remote_log")
    assert c_example(pair.client, "remote_log") == program
    keeper = start(pair.server, f"{program} keep log /tmp/kept")
    pair.client.run("head -c 6000000 /dev/urandom > /tmp/written")
    writer = pair.client.start(f"exec {program} write demo log < /tmp/written 2>&1")
    lose_paths(pair, (1, 2, 1))
    assert writer.wait(200).ok and writer.text == "6000000 bytes\n", writer.text
    sums = [guest.run(f"sha256sum < {name}") for guest, name in ((pair.client, "/tmp/written"), (pair.server, "/tmp/kept"))]
    assert sums[0] == sums[1]
    wait_for(lambda: "6000000 bytes" in keeper.text, 60, "the keeper is done with the writer")
    pair.server.run("rm /tmp/kept")
    keeper.kill()
    keeper = start(pair.server, f"{program} keep log /tmp/kept")
    # It waits for more when it is killed.
    writer = pair.client.start(f"(cat /tmp/written; sleep 600) | exec {program} write demo log 2>&1")
    pair.server.wait_until("[ $(stat -c %s /tmp/kept) -ge 5000000 ]", 60)
    writer.kill()
    wait_for(lambda: "bytes" in keeper.text, 60, "the keeper has seen the end")
    length = int(keeper.text.split()[0])
    assert length % 65536 == 0
    kept, written = (guest.run(f"head -c {length} {name} | sha256sum; stat -c %s {name}")
                     for guest, name in ((pair.server, "/tmp/kept"), (pair.client, "/tmp/written")))
    assert kept.split()[0] == written.split()[0] and int(kept.split()[-1]) == length
    keeper.kill()
    for guest in pair:
        guest.run("rm -f /tmp/kept /tmp/written")


# Word `i` of the state after step `s` is `s * (i + 1)`.
KEPT_STEP = """
import array
words = array.array("Q", open("/tmp/kept", "rb").read())
assert all(word == words[0] * at for at, word in enumerate(words, 1)), "parts of several checkpoints"
print(8 * len(words), words[0])
"""


def kept_state(guest) -> tuple[int, int]:
    """Bytes and step of the checkpoint."""
    size, step = guest.run(f"python3 -c '{KEPT_STEP}'", timeout=120).split()
    return int(size), int(step)


def test_checkpoints_by_body(pair, session):
    """The file is the last checkpoint that the keeper has confirmed, although paths are lost and the worker is killed."""
    program = c_example(pair.server, "checkpoint")
    assert c_example(pair.client, "checkpoint") == program
    keeper = start(pair.server, f"{program} keep states /tmp/kept")
    worker = pair.client.start(f"exec {program} work demo states 3 60 2>&1")
    lose_paths(pair)
    assert worker.wait(200).ok and worker.text == "60 checkpoints\n", worker.text
    assert kept_state(pair.server) == (3 << 20, 60)
    wait_for(lambda: "60 checkpoints" in keeper.text, 60, "the keeper is done with the worker")
    # The next one is killed while the keeper copies its state.
    worker = pair.client.start(f"exec {program} work demo states 3 1000000 2>&1")
    pair.server.wait_until("[ /tmp/kept.next -nt /tmp/kept ]", 60)
    time.sleep(2)
    worker.kill()
    wait_for(lambda: keeper.text.count("checkpoints") == 2, 60, "the keeper has seen the end")
    count = int(keeper.text.split()[-2])
    assert count > 0 and kept_state(pair.server) == (3 << 20, count)
    keeper.kill()
    pair.server.run("rm -f /tmp/kept /tmp/kept.next")


def test_a_program_written_for_rsockets(pair, session):
    """The shape of the RFC's riomap, riowrite and get, on rsocket_shim.h."""
    program = c_example(pair.server, "riomap_copy")
    assert c_example(pair.client, "riomap_copy") == program
    pair.client.run("head -c 5000001 /dev/urandom > /tmp/sent")
    receiver = start(pair.server, f"{program} receive files /tmp/received")
    sender = pair.client.start(f"exec {program} send demo files /tmp/sent 2>&1")
    lose_paths(pair)
    for job, text in ((sender, "5000001 bytes sent\n"), (receiver, "5000001 bytes received\n")):
        assert job.wait(120).ok and job.text == text, job.text
    sums = [guest.run(f"sha256sum < {name} && rm {name}") for guest, name in (
        (pair.client, "/tmp/sent"), (pair.server, "/tmp/received"))]
    assert sums[0] == sums[1]


SERVED = "/tmp/served"
# Requests that no client of raio.h makes, and the errors that they have.
HOSTILE = """
import errno, struct, sys
sys.path.append("/tmp")
import messages
OPEN, CLOSE, PREAD, PWRITE = 1, 2, 3, 4
fd = messages.connect("files", session="demo")

def ask(op, file=0, offset=0, length=0, handle=0, place=0, flags=0, path=b"", path_len=None):
    path_len = len(path) if path_len is None else path_len
    request = struct.pack("=2I4Q2I", op, file, offset, length, handle, place, flags, path_len)
    return messages.call(fd, request + path)[0]

assert messages.call(fd, b"")[0] == messages.call(fd, b"x" * 47)[0] == errno.EINVAL
assert ask(OPEN, path=b"new", path_len=4) == ask(OPEN, path=b"new", path_len=1 << 31) == errno.EINVAL
assert ask(OPEN, flags=8, path=b"new") == ask(OPEN, flags=3, path=b"n\\0ew") == errno.EINVAL
assert ask(OPEN, path=b"x" * 5000) == errno.EINVAL
for file in (0, 255, 256, 1 << 31):
    assert ask(CLOSE, file) == ask(PREAD, file, length=1) == errno.EBADF
assert ask(OPEN, flags=3, path=b"new") == 0
assert ask(99) == errno.EOPNOTSUPP
assert ask(PWRITE, length=1) == ask(PWRITE, length=1, handle=1 << 16) == errno.ESTALE
assert ask(PREAD, length=1 << 63) == ask(PREAD, offset=(1 << 63) - 1, length=1) == errno.EINVAL
for _ in range(255):
    assert ask(OPEN, path=b"new") == 0
assert ask(OPEN, path=b"new") == errno.EMFILE
assert ask(CLOSE, 7) == 0 and ask(OPEN, path=b"new") == 0
"""


def raio(pair, flags: str = "") -> str:
    """Starts the file service; the client's command."""
    service = c_example(pair.server, "ibmsg-raio")
    pair.server.run(f"rm -rf {SERVED} && mkdir -p {SERVED}/folder && ln -s /etc/passwd {SERVED}/out && mkfifo {SERVED}/pipe")
    start(pair.server, f"{service} {flags} files {SERVED}")
    return c_example(pair.client, "raio_client")


def test_a_remote_file_service(pair, session):
    """Files are copied and verified while paths are lost; paths that lead out are refused."""
    client = raio(pair)
    pair.client.run("head -c 5000001 /dev/urandom > /tmp/original")
    assert pair.client.run(f"{client} put demo files /tmp/original folder/copy 2>&1") == "5000001 bytes"
    assert pair.client.run(f"{client} get demo files folder/copy /tmp/again 2>&1") == "5000001 bytes"
    pair.client.run("cmp /tmp/original /tmp/again")
    sums = [guest.run(f"sha256sum < {name}") for guest, name in (
        (pair.client, "/tmp/original"), (pair.server, f"{SERVED}/folder/copy"))]
    assert sums[0] == sums[1]
    jobs = [pair.client.start(f"exec {client} verify demo files blocks{seed} 1000 250 {seed} 2>&1") for seed in (1, 2)]
    lose_paths(pair, (1, 2, 1))
    for job in jobs:
        assert job.wait(200).ok, job.text
        writes, reads = map(int, re.findall(r"\d+", job.text))
        assert writes + reads == 250 and min(writes, reads) > 80, job.text
    assert pair.server.run(f"stat -c %s {SERVED}/blocks1") == str(1000 * 4096)
    for name, why in (("none", "No such file"), ("../etc/passwd", "cross-device"), ("/etc/passwd", "cross-device"),
                      ("out", "cross-device"), ("pipe", "Invalid argument"), ("folder", "Invalid argument")):
        said = pair.client.run(f"{client} get demo files {name} /tmp/again 2>&1", check=False)
        assert said.status == 1 and why in said, said
    # The processes of clients that have gone have ended as well.
    pair.server.wait_until("[ $(pgrep -c ibmsg-raio) = 1 ]", 60)
    pair.client.run("rm /tmp/original /tmp/again")


def test_a_file_service_that_is_read_only(pair, session):
    client = raio(pair, "-r")
    pair.server.run(f"echo text > {SERVED}/file")
    assert pair.client.run(f"{client} get demo files file /tmp/got && cat /tmp/got") == "5 bytes\ntext"
    said = pair.client.run(f"{client} put demo files /tmp/got new 2>&1", check=False)
    assert said.status == 1 and "Read-only" in said
    pair.server.run(f"[ ! -e {SERVED}/new ]")


def test_a_block_that_is_not_what_was_written_is_found(pair, session):
    """What `verify` compares is what the file has."""
    client = raio(pair)
    job = pair.client.start(f"exec {client} verify demo files blocks 100 100000 1 2>&1")
    pair.server.wait_until(f"[ $(stat -c %s {SERVED}/blocks || echo 0) = 409600 ]", 60)
    # Until it is read before it is written again.
    damages = f"while :; do printf x | dd of={SERVED}/blocks bs=1 seek=5000 conv=notrunc 2> /dev/null; done"
    damaging = pair.server.start(damages)
    said = job.wait(100, check=False)
    damaging.kill()
    assert said.status == 1 and "block 1 has write" in said and "its checksum is wrong" in said, said


def test_a_hostile_client_of_the_file_service(pair, session):
    client = raio(pair)
    message_programs.push(pair.client)
    pair.client.push("/tmp/hostile.py", HOSTILE)
    pair.client.run("python3 /tmp/hostile.py 2>&1")
    # The service goes on, and the client's process has ended with its channel.
    pair.client.run(f"head -c 100000 /dev/urandom > /tmp/original && {client} put demo files /tmp/original copy")
    assert pair.server.run(f"stat -c %s {SERVED}/copy") == "100000"
    pair.server.wait_until("[ $(pgrep -c ibmsg-raio) = 1 ]", 60)
