# SPDX-License-Identifier: GPL-2.0
"""Free memory by what a guest says."""

from testbed.free_memory import count

SAID = """MemTotal:         987654 kB
MemFree:            1000 kB
MemAvailable:       2000 kB
Node 0, zone    DMA32
  pages free     96
        present  130940
  pagesets
    cpu: 0
              count:    3
              high:     378
              batch:    63
  vm stats threshold: 24
    cpu: 1
              count:    250
              high:     378
"""


def test_pages_of_processors_are_free():
    assert count(SAID) == (1000 << 10) + 253 * 4096
