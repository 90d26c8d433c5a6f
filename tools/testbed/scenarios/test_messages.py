# SPDX-License-Identifier: GPL-2.0
"""Messages between programs of one machine: what files, portals and channels promise, with a link that
stays, and with one that is lost again and again."""

import errno
import os
import re
from pathlib import Path

import pytest

from testbed import messages
from testbed.paths import TOP

PROGRAM = Path(messages.__file__)
# Frames after which the link between the programs is lost.
LOSSY = 40


def load(guest, lossy: bool = False) -> None:
    guest.run("[ ! -e /sys/module/ibmsg ] || busybox rmmod ibmsg")
    guest.run(f"modprobe ibmsg {f'lose_link={LOSSY}' if lossy else ''}")
    guest.push("/tmp/messages.py", PROGRAM.read_text())


def case(guest, name: str, *arguments, timeout: float = 600) -> str:
    return guest.run(f"timeout -s KILL {timeout - 10} python3 /tmp/messages.py {name} {' '.join(map(str, arguments))} 2>&1",
                     timeout=timeout)


@pytest.mark.parametrize("lossy", (False, True), ids=("", "lossy"))
@pytest.mark.parametrize("name", ("begin", "refused", "bounds", "flow", "small", "edge", "receipts", "calls", "shutdown", "shared",
                                  "waiting", "long_read", "counted", "given_back", "killed", "limits"))
def test_what_programs_are_promised(solo, name, lossy):
    load(solo, lossy)
    case(solo, name)


def test_order_and_exactly_once(solo):
    load(solo)
    assert int(case(solo, "in_order", 1, 3000)) == 0


def test_order_and_exactly_once_although_the_link_is_lost(solo):
    load(solo, lossy=True)
    assert int(case(solo, "in_order", 2, 3000)) > 20
    case(solo, "paths")


def test_many_channels(solo):
    load(solo)
    case(solo, "many", 1000)


def test_the_first_program(solo):
    load(solo)
    page = (TOP / "Documentation/messages.md").read_text()
    server, client = re.findall(r"```python\n(.*?)```", page, re.S)
    solo.push("/tmp/server.py", server)
    solo.push("/tmp/client.py", client)
    echo = solo.start("exec python3 /tmp/server.py")
    solo.wait_until("ls -l /proc/[0-9]*/fd 2> /dev/null | grep -q ibmsg-portal", 60)
    assert solo.run("python3 /tmp/client.py") == "b'hello'"
    assert echo.wait(60).ok


def test_unloading_waits_for_files(solo):
    guest = solo
    load(guest)
    holder = guest.start("exec 3<>/dev/ibmsg; sleep 1000")
    guest.wait_until("[ $(cat /sys/module/ibmsg/refcnt) = 1 ]", 20)
    refused = guest.run("busybox rmmod ibmsg", check=False)
    assert os.strerror(errno.EAGAIN) in refused or os.strerror(errno.EBUSY) in refused
    # A channel whose other end, the portal and the device are closed; messages are on their way.
    holder.kill()
    guest.wait_until("[ $(cat /sys/module/ibmsg/refcnt) = 0 ]", 20)
    guest.run("busybox rmmod ibmsg && [ ! -e /dev/ibmsg ]")
    load(guest)
    guest.run("[ $(stat -c '%a %U' /dev/ibmsg | tr ' ' -) = 600-root ]")


@pytest.mark.long
@pytest.mark.parametrize("lossy", (False, True), ids=("", "lossy"))
def test_any_input(solo, lossy):
    load(solo, lossy)
    assert int(case(solo, "fuzz", 60)) > 1000
    solo.run("busybox rmmod ibmsg")
