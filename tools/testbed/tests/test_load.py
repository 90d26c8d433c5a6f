# SPDX-License-Identifier: GPL-2.0
"""The longest pause in I/O."""

from testbed.load import longest_gap

PROGRESS = [(1.0, 0), (1.1, 5), (1.2, 5), (2.2, 5), (2.3, 6), (2.4, 9), (5.0, 9)]


def test_gaps():
    assert round(longest_gap(PROGRESS, 1.0), 1) == 2.6
    assert round(longest_gap(PROGRESS, 1.0, 1.15), 1) == 1.2
    assert round(longest_gap(PROGRESS, 2.25, 2.45), 1) == 2.6
    assert longest_gap(PROGRESS, 6.0) == 0
