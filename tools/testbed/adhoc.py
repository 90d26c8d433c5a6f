# SPDX-License-Identifier: GPL-2.0
"""Starts guests for interactive work: runs a script or commands from the command line, or opens a
shell.  See Documentation/testing.md."""

import argparse
import sys
from pathlib import Path

from . import klog, leaks, paths, terminal
from .channel import CommandFailed
from .lab import RDMA_MODULES, Pair, Solo


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tools/testbed/run", description=__doc__,
        epilog="-s COMMAND runs a command on the server, -c COMMAND on the client; "
               "both may be given many times and run in their order.")
    parser.add_argument("--kernel", choices=paths.FLAVOURS, default="fast")
    parser.add_argument("--solo", action="store_true", help="one guest that is server and client")
    parser.add_argument("--links", type=int, default=1)
    parser.add_argument("--rdma", choices=tuple(RDMA_MODULES), default="rxe")
    parser.add_argument("--cpus", type=int, default=2)
    parser.add_argument("--append", default="", metavar="ARGUMENTS",
                        help="more arguments for the guests' kernel")
    parser.add_argument("--leaks", action="store_true", help="ask kmemleak at the end")
    parser.add_argument("script", nargs="?", type=Path,
                        help="a Python file that uses `lab`, `server` and `client`")
    return parser


def _commands(argv: list[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """Takes -s and -c out of the arguments, in their order."""
    rest, commands = [], []
    words = iter(argv)
    for word in words:
        if word in ("-s", "-c"):
            commands.append(("server" if word == "-s" else "client", next(words, "")))
        else:
            rest.append(word)
    return rest, commands


def _report(lab) -> bool:
    """Prints what the kernels complained about; True if nothing."""
    clean = True
    for guest in lab.guests.values():
        for report in klog.faults(guest.log.lines()):
            clean = False
            print(f"\n*** {guest.name}'s kernel log:\n{report.text}")
    return clean


def main() -> int:
    rest, commands = _commands(sys.argv[1:])
    options = _parser().parse_args(rest)
    kind = Solo if options.solo else Pair
    with kind(options.kernel, links=options.links, rdma=options.rdma, cpus=options.cpus,
              kernel_arguments=options.append) as lab:
        server, client = (lab.guest, lab.guest) if options.solo else (lab.server, lab.client)
        for guest in lab.guests.values():
            print(f"==> {guest.name} is up after {guest.booted_in:.0f} s; its console: {guest.console}")
        status = 0
        try:
            if options.script:
                names = dict(lab=lab, server=server, client=client, __name__="__main__")
                exec(compile(options.script.read_text(), options.script, "exec"), names)
            for where, command in commands:
                guest = server if where == "server" else client
                print(f"{guest.name}# {command}")
                print(guest.run(command, timeout=600))
            if not options.script and not commands:
                terminal.shell(client)
        except (CommandFailed, AssertionError) as error:
            print(f"*** {error}")
            status = 1
        if options.leaks:
            for guest in lab.guests.values():
                for report in leaks.find(guest):
                    print(f"\n*** leaked on {guest.name}:\n{report.text}")
                    status = 1
        if not _report(lab):
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
