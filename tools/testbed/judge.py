# SPDX-License-Identifier: GPL-2.0
"""Decides whether the guests came through a scenario unharmed, and keeps the files that explain a
failure."""

import contextlib
import re
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import klog, leaks, paths
from .channel import CommandFailed
from .lab import Lab

# Commands that show a cause: tasks that are blocked, with their stacks; whether each processor still does
# its work; tasks that run or wait for a disk; what the disks wait for, and the sessions; counters of the
# links and of soft-RoCE.
STATE = ("echo w > /proc/sysrq-trigger; dmesg | tail -n 400",
         "cat /proc/interrupts /proc/softirqs; sleep 1; cat /proc/interrupts /proc/softirqs",
         "ps -eo pid,psr,stat,wchan:32,args | awk '$3 !~ /^[SI]/ || /fio/'",
         "grep -s . /sys/block/*/stat /sys/block/*/inflight /sys/class/ibtrs-*/*/paths/*/stats/rdma",
         "ip -s -s link; ip neigh; tc -s qdisc",
         "rdma statistic show", "rdma resource show qp")
# Looks at each processor, for a guest that answers no command.
LOOKS = 5


class Harmed(AssertionError):
    """A guest's kernel reported something that nobody allowed."""


def kernel_reports(lab: Lab) -> list[str]:
    """The kernels' reports since the marks were last moved; moves the marks.  What a kernel reports that
    has never loaded a module of ours is shown and does not count: soft-RoCE below a hostile peer in user
    space may take a packet for a queue pair that is being destroyed (WARNING at rxe_sched_task)."""
    found = []
    for guest in lab.guests.values():
        texts = [f"kernel log of {guest.name}:\n{report.text}" for report in klog.faults(guest.log.new_lines())]
        if klog.has_loaded_ours(guest.log.lines()):
            found += texts
        else:
            for text in texts:
                print(f"Not of ours, no module of which was loaded: {text}")
        guest.log.move_mark()
    return found


def _have_reported(lab: Lab, reason: str) -> list:
    """The guests with a report that is let through for this reason; marks are not moved."""
    return [guest for guest in lab.guests.values()
            if any(report.allowed == reason for report in klog.reports(guest.log.new_lines()))]


def held_up(lab: Lab) -> list:
    """The guests whose soft-RoCE has waited for minutes for what only it has."""
    return _have_reported(lab, klog.RXE_WAITS)


def unwatched(lab: Lab) -> bool:
    """Whether a guest's lockdep, which stops at its first report, has stopped at one that is let through."""
    return bool(_have_reported(lab, klog.BLKCG_MUTEX))


def leak_reports(lab: Lab) -> list[str]:
    alive = [guest for guest in lab.guests.values() if guest.alive]
    with ThreadPoolExecutor() as pool:
        return [f"leaked on {guest.name}:\n{report.text}"
                for guest, found in zip(alive, pool.map(leaks.find, alive)) for report in found]


def check(lab: Lab) -> None:
    found = kernel_reports(lab)
    if found:
        raise Harmed("\n\n".join(found))


def check_leaks(lab: Lab) -> None:
    found = leak_reports(lab)
    # A last look at the logs, for what came late.
    found += kernel_reports(lab)
    if found:
        raise Harmed("\n\n".join(found))


def keep(lab: Lab, what: str) -> Path:
    """Saves consoles, command logs and QEMU's words outside the repository."""
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", what).strip("-")
    folder = paths.cache() / "artefacts" / f"{time.strftime('%Y%m%d-%H%M%S')}-{name}"
    for source in lab.folder.glob("*-*/*.log"):
        target = folder / source.parent.name
        target.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)
    for guest in lab.guests.values():
        if guest.channel is None:
            continue
        with contextlib.suppress(CommandFailed, OSError):
            (folder / f"{guest.name}-commands.txt").write_text(guest.channel.report())
            if guest.alive and not guest.channel.closed:
                (folder / f"{guest.name}-state.txt").write_text(_state(guest))
    return folder


def _state(guest) -> str:
    """What a guest says of itself, and what its emulator says if it does not answer."""
    texts, answered = [], True
    for command in STATE:
        try:
            said = guest.run(command, timeout=30, check=False)
        except CommandFailed as error:
            said, answered = str(error), False
        texts.append(f"--- {command}\n{said}\n")
    # What the guest has said is kept even if its emulator does not answer either.
    with contextlib.suppress(OSError, RuntimeError, ValueError):
        for _ in range(0 if answered else LOOKS):
            registers = guest.qmp("human-monitor-command", **{"command-line": "info registers -a"})
            texts += [line for line in registers.splitlines() if line.startswith(("CPU#", "RIP"))]
            time.sleep(0.2)
    return "\n".join(texts)


def last_words(lab: Lab, lines: int = 15) -> str:
    words = []
    for guest in lab.guests.values():
        title = ", ".join(filter(None, (guest.name, guest.ended(), "end of the kernel log")))
        words += [f"--- {title}", *guest.log.lines()[-lines:]]
    return "\n".join(words)
