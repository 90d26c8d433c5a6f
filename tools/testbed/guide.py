# SPDX-License-Identifier: GPL-2.0
"""Reads the commands in the pages for people: the machine, the command, the expected output.

They are in blocks of the language `console`: a line that begins with `server# ` or
`client# ` is a command, and the lines below it are lines of its output.  Files are in blocks of
the language `text`, which begin with the path of the file as a comment."""

import re
from contextlib import contextmanager
from dataclasses import dataclass, field

PROMPT = re.compile(r"(server|client)# (.+)")


@dataclass
class Step:
    machine: str
    command: str
    # With single blanks, as the width of a table depends on what is in it.
    output: list[str] = field(default_factory=list)


def commands(text: str) -> list[Step]:
    steps = []
    for block in re.findall(r"^```console\n(.*?)^```$", text, re.M | re.S):
        for number, line in enumerate(block.splitlines()):
            prompt = PROMPT.fullmatch(line)
            if prompt:
                steps.append(Step(*prompt.groups()))
            elif number == 0:
                raise ValueError(f"output without a command: {line}")
            else:
                steps[-1].output.append(" ".join(line.split()))
    return steps


def files(text: str) -> dict[str, str]:
    """The files that a page has, by their paths."""
    return dict(re.findall(r"^```text\n# (/\S+)\n(.*?)^```$", text, re.M | re.S))


def section(text: str, title: str) -> str:
    """A section of a page, with those below it."""
    found, level, in_block = [], 0, False
    for line in text.splitlines(keepends=True):
        in_block ^= line.startswith("```")
        heading = None if in_block else re.match(r"(#+) (.*)\n", line)
        if level and heading and len(heading[1]) <= level:
            break
        if level:
            found.append(line)
        elif heading and heading[2] == title:
            level = len(heading[1])
    if not level:
        raise ValueError(f"no section is called {title}")
    return "".join(found)


# Files can be made in /etc and /srv, which a guest has for reading only.
_WRITABLE = """
    mkdir -p /tmp/guide/etc /tmp/guide/old /tmp/guide/srv /tmp/guide/bin
    mount --bind /etc /tmp/guide/old
    ln -s /tmp/guide/old/* /tmp/guide/etc/
    mount --bind /tmp/guide/etc /etc
    mount --bind /tmp/guide/srv /srv
"""
_AS_BEFORE = "umount /srv /etc && umount /tmp/guide/old && rm -r /tmp/guide"


@contextmanager
def writable(guest, *folders: str):
    """The guest as a machine on which files can be made in /etc and /srv, and in these folders of /etc."""
    made = "".join(f"busybox rm -f /etc/{name}; mkdir /etc/{name}\n" for name in folders)
    guest.run(f"set -e{_WRITABLE}{made}")
    yield
    guest.run(_AS_BEFORE)
