# SPDX-License-Identifier: GPL-2.0
"""Log lines of the server that a client can cause repeatedly: each source address has a limit, and the
number of lines that were left out is logged."""

import errno
import os
import re

import pytest

from testbed import exports
from testbed.hostile import launch
from testbed.lab import wait_for
from testbed.stack import STACKS

# The client writes with immediates, which soft-iWARP does not have.
pytestmark = [pytest.mark.rdma("rxe"), pytest.mark.fast]
OURS = STACKS["ibtrs"]
DISK = "nullb0"
TIMES = 100
INTERVAL = 5.0
# Lines of one address in an interval: those at once, and those that time brings.
OF_STRANGER, OF_CONNECTED = 10 + 10, 100 + 25

# Each is caused once in a round.
REFUSED = (r"refused: private data has an unknown magic number",)
CONNECTED = (r"come\d+: .*: path connected", r"come\d+: .*: path closed", r"come\d+: session closed",
             r"session refused: name contains", r"stays: .*: bad request",
             r"stays: .*: device nullb0: granted, rw: it is below dev_search_path",
             r"stays: .*: device nullb0: closed: by its client", r"stays: .*: device nothing: refused, rw: no such device")

CLIENT = f"""
stays = Party(name="stays").set_up()

def comes_and_goes(number):
    with Party(name=f"come{{number}}").set_up():
        pass

def is_refused(number):
    with Party() as party:
        assert party.refused(0, magic=1)

def has_a_bad_name(number):
    with Party() as party:
        party.connect_all()
        party.service.pair.send(party.info_req(name=b"a.b"))
        party.wait_closed()

def opens_and_closes(number):
    assert stays.close_device(stays.open("{DISK}")) == 0

def opens_nothing(number):
    assert stays.try_open("nothing")[0] == errno.ENOENT

def sends_nonsense(number):
    stays.write_chunk(stays.io, 1, 0, bytes(16), 0)
    assert stays.answer(stays.io, 1) == errno.EINVAL

deeds = (comes_and_goes, is_refused, has_a_bad_name, opens_and_closes, opens_nothing, sends_nonsense)
for deed in deeds:
    begun = time.monotonic()
    for number in range({TIMES}):
        if number % 10 == 0:
            # This session is to live meanwhile.
            stays.heartbeat()
        deed(number)
    print(deed.__name__, f"{{time.monotonic() - begun:.1f}} s", flush=True)
# The next line of the place says how many were left out.
time.sleep({INTERVAL + 1})
for deed in deeds:
    deed({TIMES})
stays.leave()
"""


def times_of(log: str, lines: tuple[str, ...]) -> list[float]:
    found = re.findall(r"^\[ *([0-9.]+)\] (.*)$", log, re.MULTILINE)
    return [float(time) for time, text in found if any(re.search(line, text) for line in lines)]


def most_at_a_time(times: list[float]) -> int:
    """The most of them in any interval."""
    return max(sum(start <= time < start + INTERVAL for time in times) for start in times)


def left_out(log: str, address: str) -> list[int]:
    return [int(lines) for lines in re.findall(rf"ibtrs_server: ip:{address}: lines left out: (\d+)$", log, re.MULTILINE)]


@pytest.mark.thorough
def test_a_client_does_not_fill_the_log(pair):
    server, client = pair
    server.null_blk(DISK, size_mb=16)
    server.run(f"{OURS.load_server()} sess_queue_depth=16")
    client.start("modprobe -a ib_uverbs rdma_ucm").wait(60)
    program = launch.program(client, "import errno\n" + CLIENT)
    print(program.wait(600))
    server.wait_for_log("stays: session closed", 60)
    log = server.run("dmesg")
    printed = 0
    for lines, most in ((REFUSED, OF_STRANGER), (CONNECTED, OF_CONNECTED)):
        times = times_of(log, lines)
        assert times and most_at_a_time(times) <= most + 1, (lines, times)
        printed += len(times)
    reported = left_out(log, "10.0.1.2")
    print(f"{printed} lines, {sum(reported)} left out in {len(reported)} turns")
    assert reported and printed + sum(reported) >= len(REFUSED + CONNECTED) * (TIMES + 1)


FLOOD = """
stranger = Party("10.0.2.1", "stranger", source="10.0.2.2").set_up()

def floods():
    # By the address of the honest client as well.
    for address, source in (("10.0.2.1", "10.0.2.2"), ("10.0.1.1", "10.0.1.2")):
        with Party(address, source=source) as party:
            assert party.refused(0, magic=1)
    for name in ("disk2", "nothing"):
        for _ in range(10):
            assert stranger.try_open(name)[0] == errno.EACCES

for _ in range(20):
    floods()
print("begun", flush=True)
end = time.monotonic() + 15
while time.monotonic() < end:
    floods()
time.sleep(21)
# So that the log tells what was left out.
assert stranger.try_open("nothing")[0] == errno.EACCES
stranger.leave()
"""


@pytest.mark.links(2)
def test_a_stranger_does_not_hide_an_honest_client(pair):
    server, client = pair
    server.null_blk(DISK, size_mb=16)
    server.run("modprobe ibnbd_server sess_queue_depth=16")
    exports.make(server, "disk1", f"/dev/{DISK}", allow_unauthenticated="10.0.1.0/24")
    exports.make(server, "disk2", f"/dev/{DISK}")
    client.run(f"{OURS.load_client()} && modprobe -a ib_uverbs rdma_ucm")
    program = launch.program(client, "import errno\n" + FLOOD)
    wait_for(lambda: "begun" in program.text or not program.running, 120, "the flood has begun")
    assert program.running, program.text
    line = 'echo "sessname=honest path=ip:10.0.1.1 device_path={}" > /sys/class/ibnbd-client/ctl/map_device'
    client.run(line.format("disk1"))
    answer = client.run(line.format("disk2"), check=False)
    assert not answer.ok and os.strerror(errno.EACCES) in answer
    program.wait(300)
    log = server.run("dmesg")
    for said in ("ip:10.0.1.2@ip:10.0.1.1: path connected",
                 "ip:10.0.1.2: export disk1: granted, rw: its paths come from allow_unauthenticated",
                 "ip:10.0.1.2: export disk2: refused, rw: it is not authenticated: load a key on both sides, or set "
                 "allow_unauthenticated (EACCES)"):
        assert f"honest: {said}" in log, (said, log)
    for line, most in ((r"ip:10.0.2.2@.*refused: private data", OF_STRANGER), (r"stranger: ip:10.0.2.2: ", OF_CONNECTED)):
        times = times_of(log, (line,))
        assert times and most_at_a_time(times) <= most + 1, (line, times)
    assert sum(left_out(log, "10.0.2.2")) > 100, log
