# SPDX-License-Identifier: GPL-2.0
"""What the terminal is told. One that is gone, or a program that reads no more, ends no run: its report has all of it."""

import contextlib
import sys


def say(text: str) -> None:
    _print(text, sys.stdout)


def complain(text: str) -> None:
    _print(text, sys.stderr)


def _print(text: str, stream) -> None:
    with contextlib.suppress(OSError):
        print(text, file=stream, flush=True)
