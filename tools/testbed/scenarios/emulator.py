# SPDX-License-Identifier: GPL-2.0
"""Runs scenarios again that failed because of the emulator or of the kernel's soft-RoCE.

QEMU 10.0 sometimes fails an assertion of its own (see guest.DidNotBoot), even long after the
boot, or ends silently before any of our modules is loaded.  Soft-RoCE may wait for minutes for
references of its own (see klog.RXE_WAITS) until the scenario runs out of time.  Such failures say
nothing about the modules under test, so the scenario runs once more, on new guests.  A scenario in
which a kernel has reported something else does not, because that report would be lost."""

import contextlib
import signal
import subprocess

from _pytest.runner import runtestprotocol

from testbed import boots, klog


def assertion(returncode: int | None, log: str) -> str | None:
    """The last words of an emulator that an assertion of its own has ended; None of one that lives,
    was killed, or ended for another reason."""
    if returncode != -signal.SIGABRT:
        return None
    lines = [line for line in log.splitlines() if "assertion" in line.lower()]
    return lines[-1].strip() if lines else None


def early(returncode: int | None, console: list[str]) -> str | None:
    """A text about an emulator that has ended, and was not killed, before a module of ours was
    loaded."""
    if returncode in (None, -signal.SIGKILL, -signal.SIGTERM) or klog.has_loaded_ours(console):
        return None
    return f"it ended ({returncode}) before anything of ours was loaded"


class Spoiled:
    """Remembers which of the guests of a scenario had an emulator that failed."""

    def __init__(self):
        # Whether it may be run again, and is to be.
        self.may, self.found = False, False

    def look(self, lab, harmed: bool, held_up=()) -> None:
        """To be called when a scenario has failed, before its guests are discarded; `harmed` says
        that a kernel has reported something, and `held_up` has the guests whose soft-RoCE has
        waited."""
        words = dict.fromkeys(held_up, "soft-RoCE waited for its own references to a queue pair")
        words |= {guest: f"its emulator failed: {said}" for guest in lab.guests.values()
                  if (said := _last_words(guest))}
        self.found = self.may and bool(words) and not harmed
        if self.found:
            for guest, said in words.items():
                boots.COUNT.fail(guest, RuntimeError(f"during a scenario {said}"))


def _last_words(guest) -> str | None:
    if guest.channel is not None and guest.channel.closed:
        # It may be about to end.
        with contextlib.suppress(subprocess.TimeoutExpired):
            guest.process.wait(30)
    code = guest.process.poll()
    return (assertion(code, (guest.folder / "qemu.log").read_text(errors="replace"))
            or early(code, guest.log.lines()))


def run(item, nextitem, spoiled: Spoiled) -> bool:
    """Runs a scenario, and a second time if the emulator spoiled the first; as pytest does it, but
    for that."""
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    spoiled.may, spoiled.found = True, False
    reports = runtestprotocol(item, log=False, nextitem=nextitem)
    spoiled.may = False
    if spoiled.found and any(report.failed for report in reports):
        # The teardown noted what the guests cost, and does so for both runs at the end.
        item.user_properties.clear()
        item._initrequest()
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True
