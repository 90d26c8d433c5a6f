# SPDX-License-Identifier: GPL-2.0
"""The command line of `make qualify`."""

import argparse
from dataclasses import dataclass
from pathlib import Path

from . import machine


# What a run may leave out.
PARTS = ("check", "data", "operations", "failover", "bench")


@dataclass(frozen=True)
class Options:
    server: str
    client: str
    disk: str = ""
    erase: bool = False
    paths: tuple[str, ...] = ()
    only: tuple[str, ...] = PARTS
    short: bool = False
    dry_run: bool = False
    clean: bool = False
    # Whether the report may say what the machines are called and which addresses they have.
    names: bool = False
    size_mib: int = 256
    ssh: str = machine.DEFAULT
    folder: Path = Path("build/qualify")

    @property
    def seconds(self) -> "Seconds":
        return SHORT if self.short else USUAL


@dataclass(frozen=True)
class Seconds:
    """How long the parts take that end by time."""

    # Of each measurement.
    bench: int
    # Of writes around each failure, which goes on for longer if they wait.
    load: int


USUAL, SHORT = Seconds(bench=6, load=15), Seconds(bench=1, load=9)


def _yes(text: str) -> bool:
    if text.lower() in ("yes", "y", "1", "true"):
        return True
    if text.lower() in ("", "no", "n", "0", "false"):
        return False
    raise argparse.ArgumentTypeError(f"{text} is neither yes nor no")


def parse(words: list[str]) -> Options:
    parser = argparse.ArgumentParser(prog="make qualify", description=__doc__)
    parser.add_argument("--server", required=True, metavar="HOST", help="SERVER=: what ssh is given")
    parser.add_argument("--client", required=True, metavar="HOST", help="CLIENT=: the same")
    parser.add_argument("--disk", default="", help="DISK=: a disk of the server to try besides; it is overwritten")
    parser.add_argument("--erase", type=_yes, default=False, help="ERASE=yes: even if there is something on it")
    parser.add_argument("--paths", default="", help="PATHS=: pairs CLIENT_ADDRESS,SERVER_ADDRESS, with blanks between them")
    parser.add_argument("--only", default="", help=f"ONLY=: some of {','.join(PARTS)}, with commas between them")
    parser.add_argument("--short", type=_yes, default=False, help="SHORT=yes: less of everything")
    parser.add_argument("--dry-run", type=_yes, default=False, help="DRY_RUN=yes: looks and plans, and changes nothing")
    parser.add_argument("--clean", type=_yes, default=False, help="CLEAN=yes: takes back what an earlier run has left")
    parser.add_argument("--names", type=_yes, default=False, help="NAMES=yes: host names and addresses in the report")
    parser.add_argument("--size-mib", type=int, default=256, help="SIZE_MIB=: of the scratch disk, 32 or more")
    parser.add_argument("--ssh", default=machine.DEFAULT, help="SSH=: a command that takes a host and a command")
    parser.add_argument("--folder", type=Path, default=Path("build/qualify"), help="REPORT=: the folder of the report")
    found = parser.parse_args(words)
    if found.size_mib < 32:
        parser.error("SIZE_MIB is at least 32")
    found.only = tuple(found.only.split(",")) if found.only else PARTS
    if not set(found.only) <= set(PARTS):
        parser.error(f"ONLY has some of {', '.join(PARTS)}")
    if found.erase and not found.disk:
        parser.error("ERASE=yes needs DISK=")
    return Options(**{**vars(found), "paths": tuple(found.paths.split()), "ssh": found.ssh or machine.DEFAULT})
