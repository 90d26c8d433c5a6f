# SPDX-License-Identifier: GPL-2.0
"""Publish and subscribe between programs of one machine, with a link that stays, and with one that is lost again and
again."""

import json
from functools import partial

import pytest

from testbed.message_programs import bound, case, load
from testbed.tool import MESSAGES, Tool

publish = partial(case, program="message_publish")


@pytest.mark.parametrize("lossy", (False, True), ids=("", "lossy"))
@pytest.mark.parametrize("name", ("begin", "places", "slow_wait", "slow_drop", "slow_close", "restart", "dies", "exits",
                                  "wrong"))
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


def test_on_the_command_line(solo):
    load(solo)
    Tool(solo, MESSAGES)
    publisher = solo.start(f"exec {MESSAGES} publish news one two --subscribers 2 --timeout 60s 2>&1")
    bound(solo)
    plain = solo.start(f"exec {MESSAGES} subscribe local news 2>&1")
    document = solo.start(f"exec {MESSAGES} --json subscribe local news --count 2 2>&1")
    for program in (publisher, plain, document):
        assert program.wait(60).ok, program.text
    assert publisher.text == "published up to position 2\n" and plain.text == "one\ntwo\n", publisher.text + plain.text
    entries = [json.loads(line) for line in document.text.splitlines()]
    assert entries == [{"tag": 0, "position": 0, "text": "one"}, {"tag": 0, "position": 1, "text": "two"}]
    # One publisher after the other; and one that waits for subscribers in vain.
    reader = None
    for text in ("first", "second"):
        publisher = solo.start(f"printf '{text}\\n' | {MESSAGES} publish news --tag 5 --subscribers 1 2>&1")
        if not reader:
            bound(solo)
        reader = reader or solo.start(f"exec {MESSAGES} subscribe local news --tag 5 --reconnect --count 2 2>&1")
        assert publisher.wait(60).ok, publisher.text
    assert reader.wait(60).ok and reader.text == "first\nsecond\n", reader.text
    assert solo.run(f"{MESSAGES} publish news x --subscribers 1 --timeout 200ms 2>&1", check=False).status == 6
    # What a slow one has lost is said.
    publisher = solo.start(f"exec {MESSAGES} publish news a b c d e --entries 2 --slow drop --keep 2>&1")
    # The portal is bound a little before the entries are published: a program that subscribes then loses none.
    solo.wait_until(f"{MESSAGES} show news | grep -qx 'published: 5'", 60)
    assert solo.run(f"{MESSAGES} subscribe local news --count 2") == "d\ne"
    publisher.kill()
