# SPDX-License-Identifier: GPL-2.0
"""Publish and subscribe between two machines: subscriptions go on when paths are lost, when a channel is lost with all
paths, and when the publisher is restarted."""

import re
import time
from functools import partial

import pytest

from testbed import blockdev, message_programs, mishaps
from testbed.lab import SERVER_ADDRESS, wait_for
from testbed.message_programs import push

pytestmark = [pytest.mark.links(2), pytest.mark.fast]

SESSION = "/sys/class/ibtrs-client/demo"

start = partial(message_programs.start, program="message_publish")


@pytest.fixture
def session(pair, stack):
    """Two paths with message connections, whose channels the server soon gives up."""
    pair.server.run("modprobe ibmsg reconnect_s=5")
    pair.client.run("modprobe ibmsg")
    for guest in pair:
        push(guest)
    mishaps.make_ready(pair)
    blockdev.map_two_paths(pair, stack)


def each_path(pair, what: str, links=(1, 2)) -> None:
    for link in links:
        pair.client.run(f"echo 1 > {SESSION}/paths/ip:10.0.{link}.2@ip:{SERVER_ADDRESS.format(link=link)}/{what}")


def publishing(pair, count: int, followers: int, pause: float = 0.01):
    press = start(pair.server, "press", "news", count, followers, pause)
    pair.server.wait_until("grep -qs '^portal:.news$' /proc/[0-9]*/fdinfo/*", 60)
    return press


def followed(*programs) -> list[dict]:
    for program in programs:
        assert program.wait(250).ok, program.text
    return [{name: int(number) for name, number in re.findall(r"(\w+)=(\d+)", program.text)} for program in programs]


def test_subscriptions_go_on_by_another_path(pair, session):
    press = publishing(pair, 1500, 3)
    followers = [start(pair.client, "follow", "demo", "news", 1500) for _ in range(3)]
    wait_for(lambda: "publishing" in press.text, 60, "all have subscribed")
    for link in (1, 2, 1, 2):
        each_path(pair, "disconnect", [link])
        time.sleep(1)
        each_path(pair, "reconnect", [link])
        wait_for(lambda: blockdev.connected(pair.client) == 2, 60, "both paths are connected")
    # And without any path for a while.
    each_path(pair, "disconnect")
    time.sleep(1)
    each_path(pair, "reconnect")
    for seen in followed(*followers):
        assert seen["moves"] > 0
        assert (seen["got"], seen["lost"], seen["opened"], seen["others"]) == (1500, 0, 1, 0), seen
    press.kill()


def test_subscriptions_go_on_by_another_channel(pair, session):
    press = publishing(pair, 1500, 2)
    followers = [start(pair.client, "follow", "demo", "news", 1500) for _ in range(2)]
    wait_for(lambda: "publishing" in press.text, 60, "all have subscribed")
    each_path(pair, "disconnect")
    pair.server.wait_for_log("demo: its client has not come back", 60)
    each_path(pair, "reconnect")
    for seen in followed(*followers):
        assert (seen["got"], seen["lost"], seen["opened"], seen["others"]) == (1500, 0, 2, 0), seen
    press.kill()


def test_a_publisher_that_is_restarted(pair, session):
    press = publishing(pair, 100000, 1)
    follower = start(pair.client, "follow", "demo", "news", 300)
    wait_for(lambda: "publishing" in press.text, 60, "it has subscribed")
    press.kill()
    pair.server.wait_until("! grep -qs '^portal:.news$' /proc/[0-9]*/fdinfo/*", 60)
    press = publishing(pair, 300, 1)
    (seen,) = followed(follower)
    assert seen["others"] == 1 and seen["lost"] == 0 and seen["got"] >= 300, seen
    press.kill()
