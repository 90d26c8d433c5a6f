# SPDX-License-Identifier: GPL-2.0
"""What a machine says of itself: one script, and its answers."""

import ipaddress
import json
from dataclasses import dataclass, field
from functools import cached_property

from .undo import FOLDER, loaded

# Ours, those of disks to scratch, those of the transports that ours is measured beside, and what drops packets.
OURS = {"server": ("ibtrs_core", "ibtrs_server", "ibnbd_server"), "client": ("ibtrs_core", "ibtrs_client", "ibnbd_client")}
OTHERS = ("null_blk", "loop", "nvmet_rdma", "nvme_rdma", "rnbd_server", "rnbd_client", "nf_tables")
PROGRAMS = ("ibnbd", "fio", "ip", "rdma", "nft", "ss", "losetup", "blkdiscard", "wipefs", "keyctl", "modprobe")

# Documents of `ibnbd` about those who use a machine, each with the module without which it has no document.
NO_MODULE = "4"
DOCUMENTS = {"clients": "", "sessions": "", "list": "", "paths": "", "export list": "ibnbd_server", "port list": "ibnbd_server",
             "key list": "ibtrs_core"}
_MODULES = " ".join(dict.fromkeys([*OURS["server"], *OURS["client"], *OTHERS]))
# `q` keeps the status of its command as well: no answer is not the answer that there is nothing.
_FUNCTIONS = r"""
s() { printf '\n== %s\n' "$1"; }
q() { n=$1; s "$n"; shift; "$@"; r=$?; s "$n: status"; echo $r; }
"""
# What may change during a run, asked again before each failover.
_NOW = f"""
s boot; cat /proc/sys/kernel/random/boot_id
s ssh; echo "$SSH_CONNECTION"
s rdma; rdma -j link show
q queue_pairs rdma -j resource show qp
s addresses; ip -j address show
q routes ip -j route show
q routes6 ip -j -6 route show
q neighbours ip -j neigh show nud permanent
s keep; grep -s . /proc/sys/net/ipv6/conf/*/keep_addr_on_down
s lower; for l in /sys/class/net/*/lower_*; do [ ! -e "$l" ] || echo "$l"; done
q tcp ss -Htn state established
q udp ss -Huan
q now cut -d' ' -f1 /proc/modules
s ours; cat {loaded()}
s devices
for d in /sys/class/infiniband/*; do
	[ -e "$d" ] || continue
	case ${{d##*/}} in
	siw*) kind=siw ;;
	*) kind=$(basename "$(readlink -f $d/device/driver)") ;;
	esac
	[ ! -e $d/parent ] || kind=rxe
	echo "${{d##*/}}|$kind|$(cat $d/fw_ver)|$(cat $d/board_id)|$(cat $d/ports/1/rate)|$(ls $d/device/net | tr '\\n' ' ')"
done
""" + "".join(f"q '{name}' ibnbd {name} --output json\n" for name in DOCUMENTS)
# An answer without its end is none.
_END = "s end; echo yes\n"
NOW = f"{_FUNCTIONS}{_NOW}{_END}"
SCRIPT = f"""{_FUNCTIONS}{_NOW}
s uid; id -u
s kernel; uname -r
s host; uname -n
s os; sed -n 's/^PRETTY_NAME=//p' /etc/os-release | tr -d '"'
s processor; sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1
s processors; nproc
s time; date +%s.%N
s uptime; cut -d' ' -f1 /proc/uptime
s memory; cat /proc/meminfo
s io_uring; cat /proc/sys/kernel/io_uring_disabled
s programs; for p in {" ".join(PROGRAMS)}; do command -v $p > /dev/null && echo $p; done
s versions; ibnbd --version; fio --version
q loaded cut -d' ' -f1 /proc/modules
s modules; for m in {_MODULES}; do modinfo -n $m > /dev/null && echo "$m $(modinfo -F version $m)"; done
s left; ls -d {FOLDER}
q search_path cat /sys/module/ibnbd_server/parameters/dev_search_path
{_END}"""


@dataclass(frozen=True)
class Address:
    interface: str
    address: ipaddress.IPv4Interface | ipaddress.IPv6Interface
    dynamic: bool = False

    @property
    def ip(self) -> str:
        return str(self.address.ip)


@dataclass(frozen=True)
class Port:
    """A port of an RDMA device that has a network interface."""

    device: str
    interface: str
    driver: str = ""
    firmware: str = ""
    board: str = ""
    rate: str = ""
    mtu: int = 0
    addresses: tuple[Address, ...] = ()

    @property
    def software(self) -> bool:
        return self.driver in ("rxe", "siw")


@dataclass(frozen=True)
class Facts:
    """The answers of one machine."""

    name: str
    sections: dict[str, str] = field(default_factory=dict)

    def now(self, later: "Facts") -> "Facts":
        """These facts, with those of a later answer in their place."""
        return Facts(self.name, self.sections | later.sections)

    @property
    def whole(self) -> bool:
        return self.text("end") == "yes"

    def text(self, section: str) -> str:
        return self.sections.get(section, "").strip()

    def words(self, section: str) -> set[str]:
        return set(self.text(section).split())

    def json(self, section: str):
        """The document of a section; None without one."""
        try:
            return json.loads(self.text(section))
        except ValueError:
            return None

    def said(self, section: str) -> bool:
        """Whether the command of a section, one of those whose status is kept, has succeeded."""
        return self.text(f"{section}: status") == "0"

    def items(self, section: str, *names: str) -> list[dict] | None:
        """Lists of a document of `ibnbd`, together; none where its module is not loaded. None if there is no such
        document, or a part of it could not be read: then nobody knows who uses the machine."""
        module = DOCUMENTS[section]
        if module and self.text(f"{section}: status") == NO_MODULE and self.said("now") and module not in self.words("now"):
            return []
        document = self.json(section)
        if not self.said(section) or not isinstance(document, dict) or document.get("notes"):
            return None
        found = [document.get(name) for name in names]
        if not all(isinstance(items, list) and all(isinstance(item, dict) for item in items) for items in found):
            return None
        return [item for items in found for item in items]

    @cached_property
    def modules(self) -> dict[str, str]:
        """The modules that can be loaded, and their versions."""
        pairs = (line.partition(" ") for line in self.text("modules").splitlines())
        return {name: version for name, _, version in pairs}

    @property
    def free_mib(self) -> int:
        values = dict(line.split(":", 1) for line in self.text("memory").splitlines() if ":" in line)
        return int(values.get("MemAvailable", "0 kB").split()[0]) >> 10

    @property
    def engine(self) -> str:
        """How fio submits requests."""
        return "libaio" if self.text("io_uring") == "2" else "io_uring"

    @cached_property
    def addresses(self) -> list[Address]:
        found = []
        for link in self.json("addresses") or []:
            for info in link.get("addr_info", []):
                if info.get("scope") == "global" and not info.get("temporary"):
                    address = ipaddress.ip_interface(f"{info['local']}/{info['prefixlen']}")
                    found.append(Address(link["ifname"], address, bool(info.get("dynamic"))))
        return found

    def all_addresses(self, interface: str) -> set[str]:
        """Also those that are temporary or of one link: connections may come from any."""
        return {info["local"] for link in self.json("addresses") or [] if link.get("ifname") == interface
                for info in link.get("addr_info", [])}

    @cached_property
    def ports(self) -> list[Port]:
        """Those that are up and have an address."""
        mtus = {link["ifname"]: link.get("mtu", 0) for link in self.json("addresses") or []}
        devices = dict(_device(line) for line in self.text("devices").splitlines() if line.count("|") == 5)
        found = []
        for link in self.json("rdma") or []:
            device = link.get("ifname", "").partition("/")[0]
            driver, firmware, board, rate, interfaces = devices.get(device, ("", "", "", "", []))
            interface = link.get("netdev") or next(iter(interfaces), "")
            addresses = tuple(address for address in self.addresses if address.interface == interface)
            if link.get("state") == "ACTIVE" and addresses:
                found.append(Port(device, interface, driver, firmware, board, rate, mtus.get(interface, 0), addresses))
        return found


def _device(line: str) -> tuple[str, tuple[str, str, str, str, list[str]]]:
    name, driver, firmware, board, rate, interfaces = line.split("|")
    return name, (driver, firmware, board, rate, interfaces.split())


def parse(name: str, text: str) -> Facts:
    sections: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("== "):
            lines = sections.setdefault(line[3:], [])
        else:
            lines.append(line)
    return Facts(name, {section: "\n".join(found) for section, found in sections.items()})
