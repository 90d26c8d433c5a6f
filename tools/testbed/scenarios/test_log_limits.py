# SPDX-License-Identifier: GPL-2.0
"""Lines in the server's log that a client can cause as often as it likes: each place prints ten in five
seconds, and how many it has left out."""

import re

import pytest

from testbed.hostile import launch
from testbed.stack import STACKS

# The client writes with immediates, which soft-iWARP does not have.
pytestmark = [pytest.mark.rdma("rxe"), pytest.mark.fast]
OURS = STACKS["ibtrs"]
DISK = "nullb0"
TIMES = 100
BURST, INTERVAL = 10, 5.0

# By the module that prints them; each is caused once in a round.
LINES = {
    "ibtrs_server::path": (r"come\d+: .*: path connected", r"come\d+: .*: path closed"),
    "ibtrs_server::session": (r"come\d+: session closed",),
    "ibtrs_server::accept": (r"refused: private data has an unknown magic number",),
    "ibtrs_server::info": (r"session refused: name contains",),
    "ibtrs_server::con": (r"stays: .*: unknown immediate", r"stays: .*: bad request"),
    "ibnbd_server::admin": (r"stays: opened nullb0", r"stays: closed nullb0", r"stays: cannot open nothing"),
}

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
    stays.io.pair.write_imm(b"", wire.imm(12, number))
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
# What was left out is said by the next line of the place.
time.sleep({INTERVAL + 1})
for deed in deeds:
    deed({TIMES})
stays.leave()
"""


def most_at_a_time(times: list[float]) -> int:
    """The most of them in any interval."""
    return max(sum(start <= time < start + INTERVAL for time in times) for start in times)


def test_a_client_does_not_fill_the_log(pair):
    server, client = pair
    server.null_blk(DISK, size_mb=16)
    server.run(f"{OURS.load_server()} sess_queue_depth=16")
    client.start("modprobe -a ib_uverbs rdma_ucm").wait(60)
    program = launch.program(client, "import errno\n" + CLIENT)
    print(program.wait(600))
    server.wait_for_log("stays: session closed", 60)
    log = re.findall(r"^\[ *([0-9.]+)\] (.*)$", server.run("dmesg"), re.MULTILINE)
    for module, lines in LINES.items():
        printed = 0
        for line in lines:
            times = [float(time) for time, text in log if re.search(line, text)]
            # The end of one interval and the beginning of the next may be next to each other.
            assert times and most_at_a_time(times) <= 2 * BURST, (line, times)
            printed += len(times)
        left_out = [int(match[1]) for _, text in log if (match := re.match(rf"{module}: (\d+) callbacks suppressed", text))]
        print(module, f"{printed} lines, {sum(left_out)} left out in {len(left_out)} turns")
        assert left_out, f"{module} does not say that it has left lines out"
        assert printed + sum(left_out) >= len(lines) * (TIMES + 1), f"{module} does not count all that it leaves out"
