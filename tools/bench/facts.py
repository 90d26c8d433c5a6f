# SPDX-License-Identifier: GPL-2.0
"""The cost of a session apart from its I/O: memory on either side for the first path and for
another one; the time to set a session up, and to fail over to its other path.

Memory is the loss of free memory, with client and server in separate guests.  Times are counted
with both in one guest, so they do not include time on a network."""

import json
from pathlib import Path

from testbed import accel
from testbed.free_memory import free_bytes
from testbed.guest import Guest
from testbed.lab import SERVER_ADDRESS, Pair, Solo

from . import measure, targets
from .results import Results
from .targets import Transport

MEASURED = ("RNBD Y", "ibnbd Y", "ibnbd Y, keys", "ibnbd Y, slots")
DEVICE = "/dev/nullb0"
# The other path has to be there for all of it.
LOAD = ("fio --output-format=json --name=load --filename={disk} --rw=randread --bs=4k --iodepth=32 --size=512m "
        "--direct=1 --ioengine=io_uring --norandommap --time_based --runtime=2")


def add_path(target: Transport) -> str:
    return f"echo ip:{SERVER_ADDRESS.format(link=2)} > {target.client.sessions('client')}/demo/add_path"


def _load(target: Transport, server: Guest, client: Guest) -> None:
    server.run("modprobe null_blk nr_devices=1 gb=1 bs=512")
    target.load(server, client)


def memory(flavour: str, folder: Path, target: Transport) -> dict[str, float]:
    """KiB of either side."""
    with Pair(flavour, links=2, our_modules=folder) as pair:
        _load(target, pair.server, pair.client)
        sides = {"server": pair.server, "client": pair.client}
        found, before = {}, {name: free_bytes(guest) >> 10 for name, guest in sides.items()}
        for what, step in (("first path and disk", lambda: target.map(pair.client, DEVICE)),
                           ("another path", lambda: pair.client.run(add_path(target)))):
            step()
            after = {name: free_bytes(guest) >> 10 for name, guest in sides.items()}
            found |= {f"{name}, {what}, KiB": before[name] - after[name] for name in sides}
            before = after
    return found


def timed(guest: Guest, command: str) -> float:
    """Milliseconds of the guest's clock."""
    return int(guest.run("begin=${EPOCHREALTIME/./}; " f"{command} && "
                         "echo $((${EPOCHREALTIME/./} - begin))").split()[-1]) / 1000


def longest_ms(output: str) -> float:
    """The longest a request took, from fio's JSON."""
    jobs = json.loads("{" + output.partition("{")[2])["jobs"]
    return max(job[side]["lat_ns"]["max"] for job in jobs for side in ("read", "write")) / 1e6


def set_up(guest: Guest, target: Transport) -> dict[str, float]:
    """Maps the first disk of a guest that serves itself, and gives the session another path."""
    line = f"sessname=demo path=ip:{targets.ADDRESS} device_path={target.server.exported(DEVICE)}"
    return {"to map the first disk, ms": timed(guest, f'echo "{line}" > {target.client.map_file}'),
            "to add a path, ms": timed(guest, add_path(target))}


def times(flavour: str, folder: Path, target: Transport) -> dict[str, float]:
    with Solo(flavour, links=2, how=accel.counting(), our_modules=folder) as lab:
        guest = lab.guest
        _load(target, guest, guest)
        found = set_up(guest, target)
        load = guest.start(LOAD.format(disk=target.client.disk))
        guest.wait_until("pgrep -x fio")
        guest.run("sleep 0.5")
        first = f"{target.client.sessions('client')}/demo/paths/*{targets.ADDRESS}"
        guest.run(f"echo 1 > $(ls -d {first})/disconnect")
        found["longest request while a path is disconnected, ms"] = longest_ms(load.wait(measure.TIME_LIMIT))
    return found


def run(flavour: str, folder: Path, target: Transport, results: Results) -> list[Exception]:
    """Adds the facts of a target; returns what went wrong."""
    try:
        found = memory(flavour, folder, target) | times(flavour, folder, target)
    except measure.FAILURES as error:
        print(f"*** {target.name}: {error}", flush=True)
        return [error]
    results.facts[target.name] = found
    print(f"{target.name:22} " + ", ".join(f"{name} {value:g}" for name, value in found.items()), flush=True)
    return []
