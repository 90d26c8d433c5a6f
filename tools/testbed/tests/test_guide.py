# SPDX-License-Identifier: GPL-2.0
"""Extracts the commands from the pages for people."""

import pytest

from testbed.guide import Step, commands, files, section
from testbed.paths import TOP

PAGE = """
Text, and `code`.

```console
server# modprobe x a=b
client# list | grep -v '#'
NAME   SIZE
disk1  16M
```

    client# is not run

```console
client# rm it
```
"""


def test_commands_have_their_machine_and_their_output():
    assert commands(PAGE) == [Step("server", "modprobe x a=b"),
                              Step("client", "list | grep -v '#'", ["NAME SIZE", "disk1 16M"]),
                              Step("client", "rm it")]


def test_output_needs_a_command():
    with pytest.raises(ValueError, match="output without a command: NAME"):
        commands("```console\nNAME\n```\n")


SECTIONS = """
# Page
## One
### Part
```text
# /etc/some/file
[x]
# comment
```

```text
output
```
## Two
x
"""


def test_sections_and_files():
    assert section(SECTIONS, "Two") == "x\n"
    assert section(SECTIONS, "One").startswith("### Part\n") and section(SECTIONS, "One").endswith("output\n```\n")
    assert "Two" in section(SECTIONS, "Page")
    assert files(section(SECTIONS, "Part")) == {"/etc/some/file": "[x]\n# comment\n"}
    assert files(section(SECTIONS, "Two")) == {}
    with pytest.raises(ValueError, match="no section is called comment"):
        section(SECTIONS, "comment")


@pytest.mark.parametrize("page, least", [("quick-start.md", 10), ("guide.md", 30), ("encryption.md", 30)])
def test_the_pages_have_commands(page, least):
    steps = commands((TOP / "Documentation" / page).read_text())
    assert len(steps) >= least and {step.machine for step in steps} == {"server", "client"}
    assert any(step.output for step in steps) or page == "encryption.md"
