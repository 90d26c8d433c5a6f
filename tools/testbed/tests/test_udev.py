# SPDX-License-Identifier: GPL-2.0
"""The rules for udev: what a scenario cannot tell for each property of a disk."""

import re

from testbed.paths import TOP

RULES = (TOP / "tools/udev/60-ibnbd.rules").read_text().splitlines()
KNOWN = re.compile(r'IMPORT\{db\}="(\w+)"')


def test_a_property_that_is_not_known_does_not_hide_another():
    """udev ends a rule at the first one."""
    imports = [line for line in RULES if KNOWN.search(line)]
    assert imports and all(KNOWN.fullmatch(line) for line in imports), imports


def test_names_come_from_properties_that_are_kept():
    kept = {found[1] for line in RULES for found in KNOWN.finditer(line)}
    used = set(re.findall(r"ENV\{(ID_(?:FS|PART)_\w+)\}", "\n".join(RULES)))
    assert used <= kept, used - kept


def test_each_jump_leads_forward():
    for at, line in enumerate(RULES):
        for label in re.findall(r'GOTO="(\w+)"', line):
            assert f'LABEL="{label}"' in RULES[at + 1:], label
