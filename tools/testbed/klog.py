# SPDX-License-Identifier: GPL-2.0
"""Reads a guest's kernel log and finds the reports that fail a scenario."""

import re
from dataclasses import dataclass
from pathlib import Path

# What the device of tools/card says of a misuse; the two others are ordinary, see Documentation/card.md.
CARD = r"rdma_card: \S+: (?!no_receive:|not_returned:)\w+: queue pair \d+, "
# Any line with one of these starts a report.
FAULTS = re.compile("|".join([
    r"\bWARNING\b: ", r"\bBUG\b[: ]", r"kernel BUG at", r"Oops\b", r"general protection fault",
    r"Unable to handle", r"Kernel panic", r"panicked at", r"invalid opcode:",
    r"KASAN: ", r"UBSAN: ", r"refcount_t: ", r"ODEBUG: ", r"DMA-API: ", r"list_(add|del) corruption",
    r"possible circular locking", r"possible recursive locking", r"possible irq lock inversion",
    r"inconsistent lock state", r"suspicious RCU usage", r"held lock", r"lock held when",
    r"bad unlock balance", r"invalid wait context", r"turning off the locking correctness",
    r"sleeping function called", r"scheduling while atomic", r"DEBUG_LOCKS_WARN_ON",
    r"blocked for more than", r"self-detected stall", r"detected stalls on",
    r"detected expedited stalls", r"soft lockup", r"workqueue lockup", r"hard LOCKUP",
    r"Bad page state", r"page allocation failure", r"invoked oom-killer",
    r"Objects remaining", r"still has objects", r"cannot create duplicate filename",
    r"trying to register non-static key", r"kobject_add_internal failed",
    r"Kernel memory leak detector disabled", CARD,
]))

# Where a report surely ends, and where surely another one starts.
END = re.compile(r"---\[ end trace|={20,}|^\s*</TASK>")
HEADLINE = re.compile(r"\bWARNING\b: |\bBUG\b: |kernel BUG at|INFO: (task|rcu)")
LONGEST = 120

# The kernel's own words in front of a line: time, and with some
# configurations the task.
STAMP = re.compile(r"^(<\d+>)?\[\s*\d+\.\d+\]\s?(\[\s*[TC]\d+\]\s?)?")


@dataclass(frozen=True)
class Allowed:
    """A report that is known and not ours to mend: a pattern that is
    searched in its text, and why it is let through."""

    pattern: str
    reason: str


RXE_WAITS = ("soft-RoCE waits 50 s for its own references to a queue pair, which nobody else can take, then "
             "goes on; seen once in 200 when an interface was set down under load")
BLKCG_MUTEX = ("the block layer allocates under the lock of a queue's control groups (blkg_conf_prep), which it also takes "
               "with the queue frozen: of any disk whose rate is limited for the first time")
ALLOWED = [
    Allowed(r"DMA-API: (preallocated|debugging enabled|dma-debug)",
            "said by DMA_API_DEBUG when it starts"),
    Allowed(r"DMA-API: .*dma_debug_entry pool",
            "said by DMA_API_DEBUG when it grows its own tables"),
    Allowed(r"(?s)rxe_pool\.c:\d+ at __rxe_cleanup.*\brxe_destroy_qp\b",
            RXE_WAITS),
    Allowed(r"WARNING: \S*rxe_comp\.c:\d+ at rxe_completer\b",
            "soft-RoCE takes a repeated response of an RDMA read for a wrong one, warns, and closes the queue pair; the "
            "path reconnects, and only slots read, which soft-RoCE does not get by itself"),
    Allowed(r"(?s)circular locking dependency.*trying to acquire lock:\n[^\n]*\(fs_reclaim\)"
            r".*already holding lock:\n[^\n]*&q->blkcg_mutex[^\n]*\bblkg_conf_prep\b",
            BLKCG_MUTEX),
    Allowed(r"(?s)\A(?!.*\[ib(trs|nbd)_).*BUG: KCSAN: ",
            "a race that none of our code is in, nor called for: others' reports fill the kernel's mailing list"),
    Allowed(r"BUG: KCSAN: data-race in virtqueue_(disable|enable)_cb",
            "a race of virtio_ring's flags with themselves, in an interrupt that may come while our code runs"),
    Allowed(r"BUG: KCSAN: data-race in __blk_flush_plug / (kthread_data|kernel_fpu_begin_mask)",
            "the block layer clears PF_BLOCK_TS of a task, and what interrupts it looks at another of its flags"),
    Allowed(r"BUG: KCSAN: data-race in (__mod_timer / blk_add_timer|blk_add_timer / __mod_timer)",
            "the block layer looks at the time of a queue's timer without its lock when a request starts"),
    Allowed(r"kobject_add_internal failed for \S+ \(error: -12 ",
            "there was no memory for it, or a test made it fail; the caller has got the error"),
    Allowed(r"(?s)page allocation failure: order:0.*\btry_fill_recv\b",
            "virtio-net found no page for a receive buffer while a test fills the memory; it tries again later"),
]


@dataclass
class Report:
    lines: list[str]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def allowed(self) -> str | None:
        """The reason it is let through, if it is."""
        for entry in ALLOWED:
            if re.search(entry.pattern, self.text):
                return entry.reason
        return None


def reports(lines: list[str]) -> list[Report]:
    """Cuts the reports out of a log.  A headline inside a report starts a new
    one, so that a report that is allowed cannot hide one that is not."""
    found: list[Report] = []
    current: Report | None = None
    for line in lines:
        text = STAMP.sub("", line)
        headline = HEADLINE.search(text)
        if current is not None and not headline:
            current.lines.append(line)
            over = END.search(text) and len(current.lines) > 2
            if over or len(current.lines) >= LONGEST:
                current = None
        elif FAULTS.search(text):
            current = Report([line])
            found.append(current)
    return found


def has_loaded_ours(lines: list[str]) -> bool:
    """Whether a kernel has loaded a module that is not its own, by its whole log."""
    return any("loading out-of-tree module taints kernel" in line for line in lines)


def faults(lines: list[str]) -> list[Report]:
    """The reports that nobody allowed."""
    return [report for report in reports(lines) if not report.allowed]


class Log:
    """The serial console of a guest, read from marks that are moved on."""

    def __init__(self, path: Path):
        self.path = path
        self.mark = 0

    def lines(self, start: int = 0) -> list[str]:
        try:
            with open(self.path, "rb") as log:
                log.seek(start)
                return log.read().decode(errors="replace").replace("\r", "").splitlines()
        except FileNotFoundError:
            return []

    def new_lines(self) -> list[str]:
        """The lines since the mark."""
        return self.lines(self.mark)

    def move_mark(self) -> None:
        self.mark = self.path.stat().st_size if self.path.exists() else 0
