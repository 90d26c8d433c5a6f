# SPDX-License-Identifier: GPL-2.0
"""Programs that pass messages: the examples, and the crate `ibmsg`."""

import pytest

from testbed.message_programs import bound, load
from testbed.tool import crate_tests, example


@pytest.mark.parametrize("lossy", (False, True), ids=("", "lossy"))
def test_futures(solo, lossy):
    """tools/ibmsg/tests/device.rs."""
    load(solo, lossy)
    ran = solo.run(f"timeout 300 {crate_tests(solo, 'device')} --ignored 2>&1", timeout=310)
    assert "test result: ok. 5 passed" in ran, ran


def test_an_rpc_service_with_tokio(solo):
    """Replies come in another order than their requests; dropped futures and killed clients are not in the way."""
    load(solo)
    program = example(solo, "rpc")
    assert solo.run(f"{program} ask", check=False).status == 2
    assert "bound" in solo.run(f"{program} ask local nobody 1 2>&1", check=False)
    server = solo.start(f"exec {program} serve rpc")
    bound(solo)
    # Those that the service has not room for at once come in the order in which they have got it.
    answer = solo.run(f"{program} ask local rpc 100", timeout=120)
    assert answer.startswith("100 calls, ") and int(answer.split()[2]) >= 60, answer
    assert solo.run(f"{program} drop local rpc").splitlines() == [
        "the first call: false", "the second call: in time", "the third call: no time"]
    killed = solo.start(f"exec {program} ask local rpc 3000")
    solo.wait_until("grep -qs '^received:\t[1-9]' /proc/[0-9]*/fdinfo/*", 60)
    killed.kill()
    assert solo.run(f"{program} drop local rpc").splitlines()[1:] == [
        "the second call: in time", "the third call: no time"]
    server.kill()
    ended = [int(line.split()[4]) for line in server.text.splitlines()]
    # The one that was dropped takes an hour; the killed client had as many as the service takes.
    assert ended[:3] == [0, 1, 64] and ended[3] == 1, server.text
