# SPDX-License-Identifier: GPL-2.0
"""The demonstration: a storage server and a client as two guests, a disk of the server mapped on
the client over soft-RoCE, written and read with verification.

Prints the commands that an operator would type on the two machines."""

import argparse
import sys
import time

from . import fio, judge, paths, terminal
from .channel import CommandFailed
from .guest import Guest
from .lab import Pair
from .guide import writable
from .stack import STACKS, Stack
from .tool import PROGRAM, Tool

# Where a guest has what a machine has in /usr.
FOLDER = "/tmp/guide"
PATH = f"export PATH={FOLDER}/bin:$PATH"
DISK_MB = 128
REGION_MB = 32


class Network(Pair):
    """A pair whose links are set up in sight of the user."""

    def network(self, name: str) -> list[str]:
        return []

    def show_network(self) -> None:
        for guest in self.guests.values():
            for command in super().network(guest.name):
                if "fd00:" not in command:
                    guest.run(command)


def show(guest: Guest, command: str) -> None:
    print(f"{guest.name:>6}# {command}", flush=True)


def typed(guest: Guest, command: str) -> str:
    """A command of the operator, as it is typed."""
    show(guest, command)
    return guest.run(f"{PATH}; {command}", timeout=120)


def bring_up(lab: Network, stack: Stack) -> None:
    """Everything between two booted machines and a mapped disk."""
    server, client = lab
    for guest in lab:
        guest.echo(show)
    lab.show_network()
    server.run(f"modprobe null_blk nr_devices=0 && mkdir /sys/kernel/config/nullb/nullb0 && "
               f"cd /sys/kernel/config/nullb/nullb0 && echo {DISK_MB} > size && "
               "echo 1 > memory_backed && echo 1 > power")
    if stack.name == "mainline":
        server.run(stack.load_server())
        client.run(stack.load_client())
        client.run(stack.map_device("/dev/nullb0"))
        return
    for guest in lab:
        guest.echo(None)
        install(guest)
    typed(server, "ibnbd export add /dev/nullb0 disk1 --host client")
    token = typed(server, "ibnbd host add client --token")
    typed(client, f"ibnbd join {next(word for word in token.split() if word.startswith('ibtrs-token-'))}")
    typed(client, "ibnbd map disk1")


def install(guest: Guest) -> None:
    """The command with its completions and manual pages, on a machine where /etc can be written."""
    Tool(guest)
    # Until the machine goes.
    writable(guest).__enter__()
    guest.run(f"ln -s {PROGRAM} {FOLDER}/bin/ibnbd && ibnbd={PROGRAM} && mkdir -p {FOLDER}/man/man1 && "
              f"$ibnbd manpages {FOLDER}/man/man1 && $ibnbd completions bash > {FOLDER}/completions")
    guest.push(f"{FOLDER}/bashrc", f"{PATH}\nexport MANPATH={FOLDER}/man:\n. {FOLDER}/completions\n")


def measure(client: Guest, disk: str) -> tuple[list, int]:
    """Returns the rows of the table and the number of verified bytes."""
    common = f"--filename={disk} --direct=1 --ioengine=io_uring"
    check = "--verify=crc32c --verify_fatal=1"
    write = fio.run(client, f"--name=write {common} {check} --size={REGION_MB}m "
                            "--rw=randwrite --bs=4k --iodepth=32 --number_ios=4096")
    mixed = fio.run(client, f"--name=mixed {common} {check} --size={REGION_MB}m "
                            f"--offset={REGION_MB}m --rw=randrw --bsrange=512-256k --iodepth=32")
    one = fio.run(client, f"--name=one {common} --size={REGION_MB}m --time_based --runtime=3 "
                          "--rw=randread --bs=4k --iodepth=1")
    rows = [("4 KiB random write, depth 32", write.write, 0),
            ("the same blocks read back", write.read, write.read.bytes),
            ("512 B to 256 KiB random write", mixed.write, 0),
            ("the same mixed with random read", mixed.read, mixed.read.bytes),
            ("4 KiB random read, depth 1", one.read, 0)]
    return rows, write.read.bytes + mixed.read.bytes


def table(rows: list) -> None:
    print(f"\n{'':34}{'IOPS':>8}{'mean us':>10}{'99 % us':>10}{'verified bytes':>17}")
    for name, side, verified in rows:
        print(f"{name:34}{side.iops:8.0f}{side.mean_us:10.0f}{side.p99_us:10.0f}{verified or '-':>17}")


def same_on_server(lab: Network, disk: str) -> bool:
    """Whether the server's disk holds what the client reads from the mapped one."""
    lab.client.run("sync")
    sums = {guest.run(f"head -c {2 * REGION_MB}M {path} | sha256sum")
            for guest, path in ((lab.server, "/dev/nullb0"), (lab.client, disk))}
    return len(sums) == 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="demo", description=__doc__)
    parser.add_argument("--stack", choices=STACKS, default="ibtrs")
    parser.add_argument("--kernel", choices=paths.FLAVOURS, default="stock")
    parser.add_argument("--shell", action="store_true", help="a shell in the client instead of fio")
    options = parser.parse_args()
    stack = STACKS[options.stack]
    started = time.monotonic()
    if options.shell:
        print("==> Two shells: one on the client, here; one on the server by `make shell-server` in another terminal",
              flush=True)
    print("==> Booting a storage server and a client", flush=True)
    with Network(options.kernel) as lab:
        print(f"==> Both are up after {time.monotonic() - started:.0f} s. On them:", flush=True)
        try:
            bring_up(lab, stack)
            print(f"==> {stack.disk} is mapped after {time.monotonic() - started:.0f} s", flush=True)
            if options.shell:
                print(f"==> You are on the client; {stack.disk} is the server's disk. For the server: make shell-server, in "
                      "another terminal. Leave with exit, which ends both.", flush=True)
                with terminal.offered(lab.server):
                    terminal.shell(lab.client)
                return 0
            rows, verified = measure(lab.client, stack.disk)
            same = same_on_server(lab, stack.disk)
            if stack.name == "mainline":
                lab.client.run(stack.unmap())
            else:
                typed(lab.client, "ibnbd unmap ibnbd0")
        except CommandFailed as error:
            print(f"\nfailed: {error}\n{judge.last_words(lab)}\n"
                  f"logs kept in {judge.keep(lab, 'demo')}", file=sys.stderr)
            return 1
        table(rows)
        print(f"\n{verified} bytes verified by fio; what the server holds on its own disk is "
              + ("the same" if same else "NOT THE SAME"))
        return 0 if same and verified else 1


if __name__ == "__main__":
    sys.exit(main())
