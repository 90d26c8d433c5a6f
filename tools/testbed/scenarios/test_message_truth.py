# SPDX-License-Identifier: GPL-2.0
"""The short form of the truth table: numbered requests under load while links lose all packets."""

import pytest

from bench.messages import truth

pytestmark = [pytest.mark.links(2), pytest.mark.fast]


@pytest.mark.long
@pytest.mark.parametrize("row", ("ibmsg, two paths", "ibmsg, one path"))
def test_cuts_lose_no_message(pair, row):
    found = truth.run(pair, truth.BY_NAME[row], [5, 1])
    print(truth.table({row: found}))
    assert found.is_kept and found.errors == 0, found
    # There was a load before the first cut and after the last one.
    assert found.sent > 300 and found.longest_ms >= 500, found
