# SPDX-License-Identifier: GPL-2.0
"""Decides from what two machines say whether they can be tried, and how well they go together."""

from dataclasses import dataclass, field

from .links import Link
from .probe import OURS, Facts
from .undo import FOLDER

# The least fio, ip and others that a run cannot do without.
NEEDED = ("ibnbd", "fio", "ip", "rdma", "ss", "losetup", "blkdiscard", "wipefs", "keyctl", "modprobe")
PACKAGES = {"ibnbd": "ibtrs-tools", "fio": "fio", "ip": "iproute2", "rdma": "iproute2", "ss": "iproute2", "losetup": "mount",
            "blkdiscard": "util-linux", "wipefs": "util-linux", "keyctl": "keyutils", "modprobe": "kmod"}
CLOCKS_S = 2.0
# Beside the scratch disk: paths, buffers, fio.
MEMORY_MIB = 512


@dataclass
class Findings:
    # Each with what to do.
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def machine(facts: Facts, scratch_mib: int) -> list[str]:
    """Why a machine cannot be tried."""
    name, found = facts.name, []
    if facts.text("left"):
        return [f"{name}: another run uses this machine, or has left {FOLDER} there: wait for its end, or run "
                "`make qualify` with CLEAN=yes, which takes back what is recorded there"]
    if not facts.whole:
        return [f"{name}: the machine has not answered all questions: something has ended the command; try again"]
    if facts.text("uid") != "0":
        found.append(f"{name}: the commands do not run as root: use root@{name}, or a user whose `sudo -n` works")
    for program in NEEDED:
        if program not in facts.words("programs"):
            found.append(f"{name}: the program {program} is not there: apt install {PACKAGES[program]}")
    missing = [module for module in OURS[name] if module not in facts.modules]
    if missing:
        found.append(f"{name}: {', '.join(missing)} cannot be loaded: kernel {facts.text('kernel')} has no such module. "
                     "Install ibtrs-dkms for this kernel, or boot the kernel that it was built for; `dkms status` shows "
                     "which that is (Documentation/installation.md)")
    if not facts.ports:
        found.append(f"{name}: no RDMA device is active and has an address: see `rdma link` and `ip address`; a software "
                     "device: rdma link add rxe0 type rxe netdev INTERFACE")
    if facts.free_mib < scratch_mib + MEMORY_MIB:
        found.append(f"{name}: {facts.free_mib} MiB of memory are free, and the run needs {scratch_mib + MEMORY_MIB}: "
                     "use a machine with more, or a smaller scratch disk (SIZE_MIB=)")
    return found


def together(server: Facts, client: Facts, links: list[Link], offset_s: float | None) -> Findings:
    """What concerns both; `offset_s` is the difference of their clocks."""
    found = Findings()
    if server.text("boot") and server.text("boot") == client.text("boot"):
        found.errors.append("SERVER and CLIENT are one machine: two are needed, as a machine does not reach itself over "
                            "a network")
    if not links:
        found.errors.append("no RDMA device of the client has an address in a network of one of the server's: see "
                            "`rdma link` and `ip address` on both, or name the pairs: PATHS='CLIENT,SERVER ...'")
    versions = {side.name: side.modules.get(OURS[side.name][-1], "") for side in (server, client)}
    if all(versions.values()) and len(set(versions.values())) > 1:
        found.warnings.append(f"the modules have different versions: server {versions['server']}, client "
                              f"{versions['client']}")
    for side in (server, client):
        own = {version for name, version in side.modules.items() if name in OURS[side.name]}
        if len(own) > 1:
            found.errors.append(f"{side.name}: its own modules have different versions ({', '.join(sorted(own))}): install "
                                "one package, and run depmod")
    if offset_s is not None and abs(offset_s) > CLOCKS_S:
        found.warnings.append(f"the clocks differ by {abs(offset_s):.0f} s: times in logs cannot be compared; run NTP")
    for link in links:
        mtus = {side: link.end(side).port.mtu for side in ("server", "client")}
        if len(set(mtus.values())) > 1:
            found.warnings.append(f"{link.name}: the MTU is {mtus['server']} at the server and {mtus['client']} at the "
                                  "client: packets of the larger size are lost")
    if len(links) == 1:
        found.warnings.append("there is one link only: nothing takes over when it is lost, and I/O waits until it is back")
    return found


def offset(before: float, server: Facts, client: Facts, after: float) -> float | None:
    """How far the clocks are apart, asked at the same moment or one soon after the other; within the time
    that asking took nothing is known."""
    try:
        apart = float(server.text("time")) - float(client.text("time"))
    except ValueError:
        return None
    return max(0.0, abs(apart) - (after - before))


DISK_SCRIPT = """
s() {{ printf '\\n== %s\\n' "$1"; }}
d=$(readlink -f {disk})
s path; echo "$d"
s block; [ -b "$d" ] && echo yes
n=${{d##*/}}
s size; cat /sys/class/block/$n/size
s read_only; cat /sys/class/block/$n/ro
s numbers; cat /sys/class/block/$n/dev /sys/class/block/$n/$n*/dev 2> /dev/null
s partitions; cat /sys/class/block/$n/$n*/partition 2> /dev/null
s holders; ls /sys/class/block/$n/holders /sys/class/block/$n/$n*/holders 2> /dev/null | grep -v ':$'
s mounts; cut -d' ' -f3 /proc/self/mountinfo
s swaps; for w in $(tail -n +2 /proc/swaps | cut -d' ' -f1); do readlink -f "$w"; done
s signatures; found=$(wipefs --no-act --noheadings --output TYPE "$d") && searched=yes; echo "$found"
s searched; echo "$searched"
s exclusive; perl -MFcntl -e 'print sysopen(my $file, $ARGV[0], O_RDONLY | O_EXCL) ? "yes" : "no"' "$d"
s end; echo yes
"""


def disk(facts: Facts, name: str, erase: bool) -> list[str]:
    """Why a disk that was named must not be written to."""
    if not facts.whole:
        return ["DISK: the server has not answered all questions: something has ended the command; try again"]
    if facts.text("block") != "yes":
        return [f"DISK: {name} is no block device of the server"]
    found = []
    if not facts.words("numbers") or not facts.words("mounts"):
        found.append(f"DISK: it cannot be found out whether {name} is mounted: see `findmnt`")
    if facts.text("read_only") == "1":
        found.append(f"DISK: {name} is read-only")
    if facts.words("numbers") & facts.words("mounts"):
        found.append(f"DISK: {name} or a partition of it is mounted: see `findmnt`")
    path = facts.text("path")
    if any(swap.startswith(path) for swap in facts.words("swaps")):
        found.append(f"DISK: the server swaps to {name}")
    if facts.words("holders"):
        found.append(f"DISK: {name} is a part of {', '.join(sorted(facts.words('holders')))}: see `lsblk`")
    if not found and facts.text("exclusive") == "no":
        found.append(f"DISK: {name} is in use: something has opened it for itself alone; see `fuser -v`")
    elif not found and facts.text("exclusive") != "yes":
        found.append("DISK: it cannot be found out whether the disk is in use without perl: apt install perl-base")
    if found:
        return found
    kinds = sorted(facts.words("signatures"))
    if facts.text("partitions") and not kinds:
        kinds = ["partitions"]
    if facts.text("searched") != "yes" and not erase:
        found.append(f"DISK: it cannot be found out whether {name} is empty: see `wipefs --no-act`")
    if kinds and not erase:
        found.append(f"DISK: {name} is not empty: it has {', '.join(kinds)}. If nothing on it is needed, ERASE=yes has the "
                     "run overwrite it")
    return found
