# SPDX-License-Identifier: GPL-2.0
"""Wrong input to map_device: each kind has its error and one line in the log, and leaves nothing
behind."""

import errno
import os
import re
import shlex
import time

import pytest

from testbed import blockdev

GOOD = "sessname=s path=ip:10.0.1.1 device_path=/dev/nullb0"

SYNTAX = {
    "an unknown option": f"{GOOD} colour=blue",
    "a doubled option": f"{GOOD} sessname=t",
    "an option without a value": "sessname= path=ip:10.0.1.1 device_path=/dev/nullb0",
    "no session name": "path=ip:10.0.1.1 device_path=/dev/nullb0",
    "no device": "sessname=s path=ip:10.0.1.1",
    "a name that is too long": f"sessname={'x' * 256} path=ip:10.0.1.1 device_path=/dev/nullb0",
    "a name with a slash": "sessname=a/b path=ip:10.0.1.1 device_path=/dev/nullb0",
    "a name that a shell would run": "sessname=a;b path=ip:10.0.1.1 device_path=/dev/nullb0",
    "a name with a dot": "sessname=a.b path=ip:10.0.1.1 device_path=/dev/nullb0",
    "a bad address": "sessname=s path=ip:10.0.1.999 device_path=/dev/nullb0",
    "an address of no known kind": "sessname=s path=tcp:10.0.1.1 device_path=/dev/nullb0",
}


def complaints(guest) -> list[str]:
    """The complaints of our modules so far."""
    return [line for line in guest.run("dmesg -l err,warn").splitlines()
            if re.search("ibtrs|ibnbd", line) and "taints" not in line]


def refused(pair, stack, line: str, expected: set[int], timeout: float = 60) -> None:
    """Writes a line that must be refused, with one of the errors expected and
    one line in the log."""
    client = pair.client
    client.run("dmesg --clear")
    answer = client.run(f"printf %s {shlex.quote(line)} > {stack.map_file}", timeout, check=False)
    assert answer.status != 0, f"taken: {line}"
    assert any(os.strerror(number) in answer for number in expected), answer
    assert len(complaints(client)) == 1
    nothing_left(client, stack)


def nothing_left(client, stack) -> None:
    assert blockdev.disks(client, stack) == []
    sessions = client.run(f"cd /sys/devices/virtual/{stack.transport('client').replace('_', '-')} && echo *",
                          check=False)
    assert not sessions.ok or set(sessions.split()) <= {"ctl", "power"}


@pytest.fixture
def ready(pair, stack):
    pair.server.null_blk(size_mb=16)
    blockdev.load(pair, stack)
    return pair


def test_syntax(ready, stack):
    for what, line in SYNTAX.items():
        print(what)
        # The log takes ten such lines in five seconds.
        time.sleep(0.6)
        refused(ready, stack, line, {errno.EINVAL, errno.ENAMETOOLONG})


def test_random_bytes(ready, stack):
    client = ready.client
    for _ in range(10):
        assert not client.ok(f"head -c 4096 /dev/urandom > {stack.map_file}")
    nothing_left(client, stack)


def test_no_such_device(ready, stack):
    refused(ready, stack, "sessname=s path=ip:10.0.1.1 device_path=/dev/nowhere", {errno.ENOENT})


def test_not_a_block_device(ready, stack):
    refused(ready, stack, "sessname=s path=ip:10.0.1.1 device_path=/dev/null", {errno.ENOTBLK})


def test_nobody_at_the_address(ready, stack):
    started = time.monotonic()
    refused(ready, stack, "sessname=s path=ip:10.0.1.77 device_path=/dev/nullb0",
            {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ETIMEDOUT, errno.ECONNRESET}, timeout=120)
    assert time.monotonic() - started < 90


def test_a_signal_ends_the_wait(ready, stack):
    client = ready.client
    client.push("/tmp/line", "sessname=s path=ip:10.0.1.77 device_path=/dev/nullb0")
    started = time.monotonic()
    client.run(f"timeout -s INT 1 sh -c 'cat /tmp/line > {stack.map_file}'", check=False)
    assert time.monotonic() - started < 15
    nothing_left(client, stack)


@pytest.mark.parametrize("how", ["disconnect", "remove_path"])
def test_no_path_is_left_while_it_connects(ready, stack, how):
    """An operator takes the only path away, while the mapping waits for it."""
    client = ready.client
    mapping = client.start(f'echo "sessname=s path=ip:10.0.1.77 device_path=/dev/nullb0" > {stack.map_file}')
    path = f"{stack.sessions('client')}/s/paths/ip:10.0.1.77"
    client.wait_until(f"[ -e {path} ]")
    # ENODEV if the mapping has failed, and removed the path, before this does.
    client.run(f"echo 1 > {path}/{how}", timeout=60, check=False)
    answer = mapping.wait(30, check=False)
    assert os.strerror(errno.ECONNABORTED) in answer
    nothing_left(client, stack)


def test_no_server_at_the_address(ready, stack):
    ready.server.run(f"modprobe -r {stack.server_module}")
    refused(ready, stack, GOOD, {errno.ECONNRESET, errno.ECONNREFUSED, errno.ETIMEDOUT}, timeout=120)


def test_already_mapped(ready, stack):
    client = ready.client
    client.run(f'echo "{GOOD}" > {stack.map_file}')
    answer = client.run(f'echo "{GOOD}" > {stack.map_file}', check=False)
    assert os.strerror(errno.EEXIST) in answer
    assert len(blockdev.disks(client, stack)) == 1


def test_read_only_attributes_stay_so(ready, stack):
    client = ready.client
    client.run(f'echo "{GOOD}" > {stack.map_file}')
    for attribute in ("state", "session", "mapping_path", "access_mode"):
        file = f"/sys/block/{stack.family}0/{stack.family}/{attribute}"
        client.run(f"test -e {file}")
        assert client.run(f"stat -c %a {file}") == "444"
        assert not client.ok(f"echo x > {file}")
