# SPDX-License-Identifier: GPL-2.0
"""Ghost writes: the first attempt of a write, sent again over another path, never lands after a later write.

testbed/ghost_writes.py has the recipe, and runs it against others as well."""

import pytest

from testbed import ghost_writes
from testbed.held_disk import HeldDisk

# Its guests get a disk by a reboot.
pytestmark = [pytest.mark.fast, pytest.mark.links(2), pytest.mark.kills, pytest.mark.rdma("rxe")]

SESSION = "/sys/class/ibtrs-client/demo"
# The loss is noticed, and the write sent again, well before its first attempt is executed.
SETTINGS = f"cd {SESSION} && echo 500 > hb_interval_ms && echo 2 > hb_missed_max"
HOLD_S = 16
UNDISTURBED = "nothing is lost"


def run(pair, variant: str, **options) -> None:
    image = pair.folder / "held.img"
    pair.reboot("server", [HeldDisk.create(image)])
    held = HeldDisk(pair.server, image)
    outcome = ghost_writes.run(pair, held, ghost_writes.TARGETS["ibnbd"], ghost_writes.VARIANTS[variant], **options)
    for judgement in outcome.judgements:
        assert judgement.is_right and not judgement.errors, outcome
        # B came after A, which waited for its first attempt.
        assert judgement.acknowledged >= 2
        assert judgement.first_write_s > options.get("hold_s", ghost_writes.HOLD_S) - 1
    # Otherwise nothing was sent twice.
    failovers = pair.client.run(f"cat {SESSION}/paths/*/stats/rdma | awk '{{ sum += $6 }} END {{ print sum }}'")
    assert (int(failovers) > 0) == (variant != UNDISTURBED)


@pytest.mark.parametrize("variant", [name for name in ghost_writes.VARIANTS if name != UNDISTURBED])
def test_none_with_short_timeouts(pair, variant):
    run(pair, variant, hold_s=HOLD_S, settings=SETTINGS)


@pytest.mark.thorough
@pytest.mark.parametrize("variant", ghost_writes.VARIANTS)
def test_none_with_default_settings(pair, variant):
    run(pair, variant)
