# SPDX-License-Identifier: GPL-2.0
"""Reads the commands in the pages for people: the machine, the command, the expected output.

They are in blocks of the language `console`: a line that begins with `server# ` or
`client# ` is a command, and the lines below it are lines of its output."""

import re
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
