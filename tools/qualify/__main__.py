# SPDX-License-Identifier: GPL-2.0
"""The command line of `make qualify`; see Documentation/qualify.md."""

import contextlib
import os
import signal
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from . import options as command_line
from . import parts, report, results
from .machine import Failed, Machine, Unreachable, transport
from .options import Options
from .run import Refused, Run
from .terminal import complain, say

PASSED, FAILED, REFUSED = 0, 1, 2
STDERR = 2
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):
    """Ctrl-C, or another signal that asks the run to end."""

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.number = number


def _interrupt(run: Run, number: int, _frame) -> None:
    # From here on the run takes back what it has made: a second signal must not end that.
    _on_signals(_still_cleaning)
    run.stopped = Interrupted(number)
    raise run.stopped


def _still_cleaning(_number: int, _frame) -> None:
    # print() may be the very function that was interrupted, and the terminal may be gone.
    with contextlib.suppress(OSError):
        os.write(STDERR, b"==> cleaning up; what cannot be taken back now, CLEAN=yes takes back later\n")


def _on_signals(handler) -> None:
    """Signals that are ignored stay so: those who start a run with `nohup` mean it."""
    for number in SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handler)


def _end(run: Run) -> int:
    """Cleans up; returns the status."""
    _on_signals(_still_cleaning)
    left = run.clean()
    for line in left:
        complain(f"error: could not be taken back: {line}")
    if left:
        complain("==> CLEAN=yes tries that again; what is left is recorded in /run/ibnbd-qualify/undo there")
    return FAILED if left else PASSED


def _refuse(reasons: list[str]) -> int:
    for reason in reasons:
        complain(f"error: {reason}")
    complain("==> nothing was changed on either machine")
    return REFUSED


def _scrub(options: Options, run: Run) -> results.Scrub:
    names = {machine.host.rpartition("@")[2]: machine.name for machine in run.machines}
    names |= {facts.text("host"): name for name, facts in run.facts.items()}
    names |= {disk: "[disk]" for disk in (options.disk, run.named) if disk}
    return results.Scrub(names, options.names)


def _report(options: Options, run: Run) -> None:
    folder = options.folder
    document = results.save(run.outcome, _scrub(options, run), folder / "qualify.json")
    (folder / "qualify.html").write_text(report.page(results.load(document)))
    say(f"==> {folder / 'qualify.html'}, {folder / 'qualify.json'}")


def _begin(run: Run) -> None:
    """A signal waits until it is known on which machines there is a record: those are cleaned up."""
    waiting: list[int] = []
    _on_signals(lambda number, _frame: waiting.append(number))
    run.begin()
    _on_signals(partial(_interrupt, run))
    if waiting:
        _interrupt(run, waiting[0], None)


def _try(options: Options, run: Run) -> int:
    run.outcome.began = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
    began, number, status = time.monotonic(), 0, PASSED
    try:
        _begin(run)
        parts.everything(run)
    except (Interrupted, Failed) as error:
        # What failed on the way out does not matter then.
        stopped = run.stopped or error
        if isinstance(stopped, Interrupted):
            complain(f"==> {stopped}: cleaning up")
            run.outcome.interrupted, number = True, stopped.number
        else:
            complain(f"error: {error}")
            status = FAILED
    finally:
        cleaned = _end(run)
    run.outcome.seconds = round(time.monotonic() - began, 1)
    _report(options, run)
    say(f"==> {report.verdict(run.outcome)}")
    if number:
        return 128 + number
    return max(status, cleaned, PASSED if run.outcome.passed else FAILED)


def _with_machines(options: Options, run: Run) -> int:
    if options.clean:
        run.begun = run.machines
        return _end(run)
    run.look()
    for warning in run.outcome.warnings:
        say(f"warning: {warning}")
    if options.dry_run:
        say("\n".join(run.plan.lines()))
        return PASSED
    say(f"==> {len(run.plan.steps)} steps, about {run.plan.seconds / 60:.0f} min on hardware")
    return _try(options, run)


def main(words: list[str]) -> int:
    options = command_line.parse(words)
    with tempfile.TemporaryDirectory(prefix="ibnbd-qualify-") as folder:
        ssh = transport(options.ssh, Path(folder))
        run = Run(options, Machine("server", options.server, ssh), Machine("client", options.client, ssh))
        try:
            return _with_machines(options, run)
        except Refused as error:
            return _refuse(error.reasons)
        except Unreachable as error:
            return _refuse([f"{error}\n  it has to work without a password: try `{options.ssh} HOST true`"])
        except Failed as error:
            return _refuse([str(error)])
        except KeyboardInterrupt:
            _refuse([])
            return 128 + signal.SIGINT
        finally:
            for machine in run.machines:
                machine.disconnect()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
