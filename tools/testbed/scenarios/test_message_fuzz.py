# SPDX-License-Identifier: GPL-2.0
"""Anything into the files of /dev/ibmsg, by ioctl, io_uring, read and write: see message_fuzz.py.

IBTRS_FUZZ_SECONDS=<number> takes longer, IBTRS_SEED=<number> repeats the choices."""

import json
from functools import partial

import pytest

from testbed import message_programs
from testbed.hostile.beside import seconds, seed
from testbed.message_programs import bound, finish, load

start = partial(message_programs.start, program="message_fuzz")
# Programs of one machine have shared memory.
MEMORY = {"MAP", "UNMAP", "GET", "PUT"}
CALLS = {"BIND", "CONNECT", "ACCEPT", "INFO", "SHUTDOWN", "CALL", "FLUSH", "TUNE", "SUBSCRIBE", "UNSUBSCRIBE", "LOG"}


def arguments() -> tuple[int, str]:
    taken = seconds(), seed()
    print("IBTRS_SEED={1}, {0} s".format(*taken))
    return taken


def fuzz(*machines: tuple, allowed: set[str]) -> None:
    """Each of the ioctls that may succeed has done so now and then, on one of the machines."""
    time, number = arguments()
    programs = []
    for guest, session in machines:
        programs.append(start(guest, "fuzz", session, "fuzz", time, number))
        bound(guest)
    text = finish(*programs, timeout=time + 200)
    print(text)
    found = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    assert len(found) == len(machines) and all(each["steps"][0] > 100 for each in found)
    succeeded = {what for each in found for what, (_, done) in each.items() if done}
    assert allowed <= succeeded, allowed - succeeded
    assert not any(what in succeeded for what in ("another", "SQE another")), text


@pytest.mark.long
@pytest.mark.parametrize("lossy", (False, True), ids=("", "lossy"))
def test_fuzz_files(solo, lossy):
    load(solo, lossy)
    fuzz((solo, "local"), allowed=CALLS)
    solo.run("busybox rmmod ibmsg")


@pytest.mark.long
@pytest.mark.links(2)
def test_fuzz_files_of_two_machines(pair, session):
    fuzz((pair.server, "local"), (pair.client, "demo"), allowed=CALLS | MEMORY)
