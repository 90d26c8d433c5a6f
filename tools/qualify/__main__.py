# SPDX-License-Identifier: GPL-2.0
"""The command line of `make qualify`; see Documentation/qualify.md."""

import contextlib
import signal
import sys
import tempfile
import time
from pathlib import Path

from . import options as command_line
from . import parts, report, results
from .machine import Failed, Machine, Unreachable, transport
from .options import Options
from .run import Refused, Run

PASSED, FAILED, REFUSED = 0, 1, 2
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):
    """Ctrl-C, or another signal that asks the run to end."""

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.number = number


def _interrupt(number: int, _frame) -> None:
    raise Interrupted(number)


def _still_cleaning(_number: int, _frame) -> None:
    print("==> cleaning up; what cannot be taken back now, CLEAN=yes takes back later", file=sys.stderr, flush=True)


def _on_signals(handler) -> None:
    for number in SIGNALS:
        signal.signal(number, handler)


def _end(run: Run) -> int:
    """Cleans up; returns the status."""
    _on_signals(_still_cleaning)
    left = run.clean()
    for line in left:
        print(f"error: could not be taken back: {line}", file=sys.stderr)
    if left:
        print("==> CLEAN=yes tries that again; what is left is recorded in /run/ibnbd-qualify/undo there", file=sys.stderr)
    return FAILED if left else PASSED


def _refuse(reasons: list[str]) -> int:
    for reason in reasons:
        print(f"error: {reason}", file=sys.stderr)
    print("==> nothing was changed on either machine", file=sys.stderr)
    return REFUSED


def _scrub(options: Options, run: Run) -> results.Scrub:
    names = {machine.host.rpartition("@")[2]: machine.name for machine in run.machines}
    names |= {facts.text("host"): name for name, facts in run.facts.items()}
    if options.disk:
        names[options.disk] = "[disk]"
    return results.Scrub(names, options.names)


def _report(options: Options, run: Run) -> None:
    folder = options.folder
    document = results.save(run.outcome, _scrub(options, run), folder / "qualify.json")
    (folder / "qualify.html").write_text(report.page(results.load(document)))
    print(f"==> {folder / 'qualify.html'}, {folder / 'qualify.json'}")


def _try(options: Options, run: Run) -> int:
    run.outcome.began = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
    began, number, status = time.monotonic(), 0, PASSED
    _on_signals(_interrupt)
    try:
        run.begin()
        parts.everything(run)
    except Interrupted as error:
        print(f"==> {error}: cleaning up", file=sys.stderr, flush=True)
        run.outcome.interrupted, number = True, error.number
    except Failed as error:
        print(f"error: {error}", file=sys.stderr)
        status = FAILED
    finally:
        cleaned = _end(run)
    run.outcome.seconds = round(time.monotonic() - began, 1)
    _report(options, run)
    print(f"==> {report.verdict(run.outcome)}")
    if number:
        return 128 + number
    return max(status, cleaned, PASSED if run.outcome.passed else FAILED)


def _with_machines(options: Options, run: Run) -> int:
    if options.clean:
        run.begun = run.machines
        return _end(run)
    run.look()
    for warning in run.outcome.warnings:
        print(f"warning: {warning}")
    if options.dry_run:
        print("\n".join(run.plan.lines()))
        return PASSED
    print(f"==> {len(run.plan.steps)} steps, about {run.plan.seconds / 60:.0f} min on hardware", flush=True)
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
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main(sys.argv[1:]))
