# SPDX-License-Identifier: GPL-2.0
"""The commands `ibnbd` and `ibmsg` in guests: built once on the host, which has the guests' libraries, and copied
to each guest that runs it."""

import functools
import json
import os
import subprocess
from pathlib import Path

from . import paths

# Their names in a guest.
PROGRAM = "/tmp/ibnbd"
MESSAGES = "/tmp/ibmsg"
# For programs in C that include ibmsg.h.
C_FLAGS = ("-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", "-O2", "-I", paths.TOP / "ibmsg")


@functools.cache
def build(name: str = "ibnbd", released: bool = False) -> Path:
    """Returns a program, as the sources are now: built as for its tests, which have built most of it, or as for its
    package."""
    target = paths.crates()
    profile = "release" if released else "dev"
    subprocess.run(["cargo", "build", "--quiet", "--locked", "--profile", profile, "--package", name], cwd=paths.TOP, check=True,
                   env={**os.environ, "CARGO_TARGET_DIR": str(target)})
    return target / ("release" if released else "debug") / name


def _cargo(*words: str) -> str:
    return subprocess.run(["cargo", *words, "--locked", "--package", "ibmsg", "--all-features"], cwd=paths.TOP, check=True,
                          env={**os.environ, "CARGO_TARGET_DIR": str(paths.crates())}, stdout=subprocess.PIPE,
                          text=True).stdout


def _copy(guest, program: Path, name: str) -> str:
    subprocess.run(["strip", "-o", guest.share / name, program], check=True)
    guest.run(f"cp /mnt/share/{name} /tmp/{name}")
    return f"/tmp/{name}"


def example(guest, name: str) -> str:
    """Builds an example of the crate ibmsg, and returns its name in a guest."""
    _cargo("build", "--example", name)
    return _copy(guest, paths.crates() / "debug/examples" / name, name)


def c_program(guest, source: Path) -> str:
    """Compiles a program in C, and returns its name in a guest."""
    name = source.stem
    subprocess.run(["cc", *C_FLAGS, "-static", "-o", guest.share / name, source], check=True)
    guest.run(f"cp /mnt/share/{name} /tmp/{name}")
    return f"/tmp/{name}"


def c_example(guest, name: str) -> str:
    return c_program(guest, paths.TOP / f"tools/examples/{name}.c")


def crate_tests(guest, name: str) -> str:
    """Builds tests of the crate ibmsg, and returns the name of their program in a guest."""
    built = map(json.loads, _cargo("test", "--test", name, "--no-run", "--message-format=json").splitlines())
    (program,) = (one["executable"] for one in built if one.get("target", {}).get("name") == name and one["executable"])
    return _copy(guest, Path(program), f"{name}_tests")


class Tool:
    """A command in one guest."""

    def __init__(self, guest, program: str = PROGRAM, released: bool = False):
        self.guest, self.program = guest, program
        name = Path(program).name
        # In the guest's memory, as a share is slow to start programs from.
        subprocess.run(["strip", "-o", guest.share / name, build(name, released)], check=True)
        guest.run(f"cp /mnt/share/{name} {program}.new && mv {program}.new {program}")

    def __call__(self, words: str, timeout: float = 120) -> str:
        """Its standard output; it has to succeed."""
        said = f"{self.program}.said"
        return self.guest.run(f"{self.program} {words} 2> {said} || {{ code=$?; cat {said}; exit $code; }}", timeout).strip()

    def json(self, words: str) -> dict:
        return json.loads(self(f"{words} --output json"))

    def refused(self, words: str, code: int = 1) -> str:
        """Its error output when it fails with that code."""
        answer = self.guest.run(f"{self.program} {words} 2>&1", check=False)
        assert answer.status == code, f"{words}: {answer.status}: {answer}"
        return str(answer)
