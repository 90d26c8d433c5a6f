# SPDX-License-Identifier: GPL-2.0
"""The manual pages of the command that are written by hand are good manual pages."""

import re
import subprocess

import pytest

from testbed.paths import TOP

PAGES = sorted((TOP / "tools/ibnbd/man").iterdir())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_mandoc_finds_no_fault(page):
    found = subprocess.run(["mandoc", "-T", "lint", "-W", "warning", page], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (0, "")
    name, section = page.name.rsplit(".", 1)
    assert re.search(rf"^\.TH {name} {section} ", page.read_text(), re.M)


def test_the_package_has_them():
    assert PAGES and "tools/ibnbd/man/*" in (TOP / "tools/debian/ibtrs-tools.manpages").read_text().split()
