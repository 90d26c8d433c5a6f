# SPDX-License-Identifier: GPL-2.0
"""Publish and subscribe between programs of one machine, with a link that stays, and with one that is lost again and
again."""

import pytest

from testbed.message_programs import load


def publish(guest, name: str, *arguments) -> str:
    return guest.run(f"timeout -s KILL 200 python3 /tmp/message_publish.py {name} {' '.join(map(str, arguments))} 2>&1", timeout=210)


@pytest.mark.parametrize("lossy", (False, True), ids=("", "lossy"))
@pytest.mark.parametrize("name", ("begin", "places", "slow_wait", "slow_drop", "slow_close", "restart", "dies", "wrong"))
def test_subscribers_have_what_is_published(solo, name, lossy):
    load(solo, lossy)
    publish(solo, name)


@pytest.mark.parametrize("lossy", (False, True), ids=("", "lossy"))
def test_many_subscribers(solo, lossy):
    load(solo, lossy)
    publish(solo, "many", 100)


@pytest.mark.parametrize("lossy", (False, True), ids=("", "lossy"))
def test_order_of_what_is_published(solo, lossy):
    load(solo, lossy)
    assert (int(publish(solo, "in_order", 5, 1000)) > 5) == lossy
