# SPDX-License-Identifier: GPL-2.0
"""The figures of a soak test."""

from testbed.soak.tally import Tally


def test_counters_that_begin_again():
    """A path, disk or program that is made again counts from 0."""
    tally = Tally()
    assert [tally.follow("disk 0", value) for value in (10, 25, 25, 4, 9)] == [10, 15, 0, 4, 5]
    assert tally.follow("disk 1", 7) == 7


def test_events_are_counted_by_name():
    tally = Tally()
    for event in ("a hostile client", "link: cable pulled", "a hostile client"):
        tally.note(event)
    assert tally.events == {"a hostile client": 2, "link: cable pulled": 1}
