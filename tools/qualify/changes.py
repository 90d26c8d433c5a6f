# SPDX-License-Identifier: GPL-2.0
"""What a run makes on the two machines, each with the command that takes it back."""

import shlex

from .links import Link
from .undo import FOLDER, Change, end_programs, loaded

# The session, its host and its key; the exports.
SESSION = "ibnbd-qualify"
DATA, NULL, NAMED = "ibnbd-qualify-data", "ibnbd-qualify-null", "ibnbd-qualify-disk"
OWN = frozenset((SESSION, DATA, NULL, NAMED))
IMAGE = "/dev/shm/ibnbd-qualify.img"
NULL_DISK = "nullbqualify"
NULL_MIB = 1024
# Modules that a run may load, in an order in which they can be unloaded.
CLIENT, SERVER = ("ibnbd_client", "ibtrs_client", "ibtrs_core"), ("ibnbd_server", "ibtrs_server", "ibtrs_core")
NVME_CLIENT, NVME_SERVER = ("nvme_rdma", "nvme_fabrics", "nvme_core"), ("nvmet_rdma", "nvmet", "nvme_core")
RNBD_CLIENT, RNBD_SERVER = ("rnbd_client", "rtrs_client", "rtrs_core"), ("rnbd_server", "rtrs_server", "rtrs_core")
LOADED = tuple(dict.fromkeys([*CLIENT[:-1], *SERVER, *NVME_CLIENT[:-1], *NVME_SERVER, *RNBD_CLIENT[:-1], *RNBD_SERVER,
                              "null_blk", "loop"]))
# Modules that can be unloaded while somebody uses them, each with a command that succeeds then; `there` does if one of its
# files is there. The kernel itself keeps the others.
_CONFIGURED = " ".join(f"/sys/kernel/config/ibnbd/{kind}/*/" for kind in ("exports", "hosts", "ports"))
USED = {"ibnbd_client": "there /sys/block/ibnbd*", "ibtrs_client": "there /sys/class/ibtrs-client/*/paths",
        "ibnbd_server": f"there /sys/class/ibtrs-server/*/paths {_CONFIGURED}",
        "ibtrs_server": "there /sys/class/ibtrs-server/*/paths", "rnbd_client": "there /sys/block/rnbd*",
        "rtrs_client": "there /sys/class/rtrs-client/*/paths", "rnbd_server": "there /sys/class/rtrs-server/*/paths",
        "rtrs_server": "there /sys/class/rtrs-server/*/paths", "null_blk": "there /sys/block/nullb*",
        # It deletes all controllers when it goes, also that of a disk that is mounted.
        "nvme_rdma": "grep -qsx rdma /sys/class/nvme/*/transport",
        # It has the keys.
        "ibtrs_core": """! ibnbd key list --output json 2> /dev/null | tr -d ' \\n' | grep -q '"keys":\\[\\]'"""}
# Of transports that are measured beside ours: port numbers and names that nobody else uses.
NVME_PORT, NVME_ID, NQN = 44220, 44220, "nqn.2026-01.ibnbd-qualify"
RNBD_PORT = 44221
RNBD_FOLDER = "/dev/ibnbd-qualify"
PACKETS = "ibnbd_qualify"


def tolerant(command: str) -> str:
    """A command of `ibnbd` that may find nothing to remove, or no module."""
    return f"{command}; r=$?; [ $r = 0 ] || [ $r = 3 ] || [ $r = 4 ]"


def modules(folder: str = FOLDER) -> Change:
    """Loads nothing; unloads at the end what the run's changes have loaded, but for what others use by then."""
    used = " ".join(f"{name}) {command} ;;" for name, command in USED.items())
    return Change("modules", "true",
                  "there() { for e; do [ ! -e $e ] || return 0; done; return 1; }; "
                  f"used() {{ case $1 in {used} *) false ;; esac; }}; "
                  f"for m in {' '.join(LOADED)}; do "
                  f"! grep -qsx $m {loaded(folder)} || [ ! -e /sys/module/$m ] || used $m || rmmod $m || true; done")


def scratch(size_mib: int) -> Change:
    """A file in memory as a disk; prints its path."""
    return Change("scratch disk",
                  f"[ -e /sys/module/loop ] || modprobe loop\ntruncate -s {size_mib}M {IMAGE}\nlosetup --find --show {IMAGE}",
                  f"for l in $(losetup --noheadings --output NAME --associated {IMAGE}); do losetup -d $l || exit 1; done; "
                  f"rm -f {IMAGE}", loads=("loop",))


def null_disk(processors: int) -> Change:
    """A disk that keeps nothing and takes no time; prints its path."""
    folder = f"/sys/kernel/config/nullb/{NULL_DISK}"
    return Change("null disk",
                  f"[ -e /sys/module/null_blk ] || modprobe null_blk nr_devices=0\nmkdir {folder}\ncd {folder}\n"
                  f"echo {NULL_MIB} > size; echo {processors} > submit_queues; echo 1 > power; echo /dev/{NULL_DISK}",
                  f"[ ! -d {folder} ] || {{ echo 0 > {folder}/power; rmdir {folder}; }}", loads=("null_blk",))


def key(side: str) -> Change:
    """The key is on standard input."""
    return Change("key", f"modprobe ibtrs_core && ibnbd key load {SESSION}", tolerant(f"ibnbd key remove {SESSION}"),
                  loads=("ibtrs_core",))


def host() -> Change:
    """`ibnbd host remove` would also look for keys in /etc, where there are none of a run. The module has to be there before
    what is made in its directory."""
    folder = f"/sys/kernel/config/ibnbd/hosts/{SESSION}"
    return Change("host", f"modprobe ibnbd_server && ibnbd host add {SESSION}", f"[ ! -d {folder} ] || rmdir {folder}",
                  loads=SERVER)


def export(name: str, device: str) -> Change:
    return Change(f"export {name}", f"ibnbd export add {shlex.quote(device)} {name} --host {SESSION}",
                  tolerant(f"ibnbd export remove {name} --force"))


def mapped(name: str, links: list[Link]) -> Change:
    """Prints the disk's path. Disks in memory have no identity: the session has a key, and nobody else
    exports under these names."""
    paths = " ".join(f"--path {link.path}" for link in links)
    disk = f"{name}@{SESSION}"
    return Change(f"map {name}",
                  f"ibnbd map {links[0].server.address.ip} {name} --session {SESSION} {paths} --identity none",
                  # A program that was killed uses the disk until its last request has ended.
                  f"for i in 1 2 3 4 5 6 7 8 9 10; do ibnbd unmap {disk} && exit 0; r=$?; [ $r != 3 ] && [ $r != 4 ] || exit 0; "
                  f"sleep 1; done; ibnbd unmap --force {disk}", loads=CLIENT)


def load(command: str) -> Change:
    """fio, which goes on while something else happens; `fio.json` and `fio.status` appear at its end."""
    inner = f"{command} > fio.out 2> fio.err; echo $? > fio.new; mv fio.new fio.status"
    return Change("load",
                  f"cd {FOLDER} && rm -f fio.* fio_iops* && {{ setsid sh -c {shlex.quote(inner)} < /dev/null > /dev/null 2>&1 7>&- & }}",
                  end_programs())


def nvme_export(device: str, address: str, host: str) -> Change:
    top = "/sys/kernel/config/nvmet"
    space, port, family = f"{top}/subsystems/{NQN}", f"{top}/ports/{NVME_ID}", "ipv6" if ":" in address else "ipv4"
    return Change(
        "nvmet",
        f"modprobe nvmet-rdma\nmkdir {top}/hosts/{host}\nmkdir {space}\nmkdir {space}/namespaces/1\n"
        f"echo {device} > {space}/namespaces/1/device_path; echo 1 > {space}/namespaces/1/enable\n"
        f"ln -s {top}/hosts/{host} {space}/allowed_hosts/{host}\nmkdir {port}\ncd {port}\n"
        f"echo {family} > addr_adrfam; echo rdma > addr_trtype; echo {address} > addr_traddr; echo {NVME_PORT} > addr_trsvcid\n"
        f"ln -s {space} subsystems/{NQN}",
        f"[ ! -d {top} ] || {{ rm -f {port}/subsystems/{NQN} {space}/allowed_hosts/{host}; for d in {port} "
        f"{space}/namespaces/1 {space} {top}/hosts/{host}; do [ ! -d $d ] || rmdir $d || exit 1; done; }}", loads=NVME_SERVER)


def _or_why(file: str) -> str:
    """The shell says no more than the errno of a write that the kernel refuses."""
    return f"|| {{ echo 'the kernel refuses what is written to {file}: see dmesg on both machines' >&2; exit 1; }}"


def nvme_connect(address: str, host: str) -> Change:
    """Prints the disk's path, which with native multipath is not named like the controller."""
    options = (f"transport=rdma,traddr={address},trsvcid={NVME_PORT},nqn={NQN},hostnqn={host},"
               f"hostid={host.rpartition(':')[2]}")
    mine = f"grep -lx {NQN} /sys/class/nvme/*/subsysnqn 2> /dev/null"
    # Without native multipath, the disk is below its controller.
    where = f"$(grep -slx {NQN} /sys/class/nvme-subsystem/*/subsysnqn /sys/class/nvme/*/subsysnqn)"
    return Change(
        "nvme",
        f"modprobe nvme-rdma\necho '{options}' > /dev/nvme-fabrics {_or_why('/dev/nvme-fabrics')}\n"
        "for i in 1 2 3 4 5 6 7 8 9 10; do\n"
        f"for s in {where}; do\n"
        "for n in $(ls ${s%/subsysnqn} | grep -E '^nvme[0-9]+n[0-9]+$'); do [ ! -b /dev/$n ] || { echo /dev/$n; exit 0; }; "
        "done; done\nsleep 0.5\ndone\n"
        "echo 'the controller is connected, and no disk has appeared: see dmesg' >&2; exit 1",
        f"for c in $({mine}); do echo 1 > ${{c%/subsysnqn}}/delete_controller; done; true", loads=NVME_CLIENT)


def rnbd_export(device: str) -> Change:
    """Its server exports a folder to everybody: one with nothing but that disk in it, below /dev, as the kernel looks it up
    in its own root."""
    folder = RNBD_FOLDER
    return Change("rnbd server",
                  f"mkdir {folder}\nln -s {device} {folder}/null\n"
                  f"[ ! -e /sys/module/rnbd_server ] || {{ echo 'others have loaded rnbd_server' >&2; exit 1; }}\n"
                  f"modprobe rnbd_server dev_search_path={folder} port_nr={RNBD_PORT}",
                  f"! grep -qsx {folder} /sys/module/rnbd_server/parameters/dev_search_path || rmmod rnbd_server || exit 1; "
                  f"rm -rf {folder}", loads=RNBD_SERVER)


def rnbd_map(link: Link) -> Change:
    line = (f"dest_port={RNBD_PORT} sessname={SESSION} path=ip:{link.client.address.ip}@ip:{link.server.address.ip} "
            "device_path=null")
    find = "ls -d /sys/block/rnbd*/rnbd 2> /dev/null"
    return Change("rnbd client",
                  f"modprobe rnbd_client\necho '{line}' > /sys/class/rnbd-client/ctl/map_device {_or_why('map_device of rnbd_client')}\n"
                  f"for d in $({find}); do d=${{d%/rnbd}}; echo /dev/${{d##*/}}; done | tail -n 1",
                  f"for d in $({find}); do ! grep -qx null $d/mapping_path || echo force > $d/unmap_device; done; true",
                  loads=RNBD_CLIENT)
