# SPDX-License-Identifier: GPL-2.0
"""NVMe over fabrics of the kernel, both ends, over RDMA."""

from .guest import Guest, wait_for

HOST = "00000000-0000-0000-0000-000000000001"
PORT = 4420


def export(server: Guest, subsystem: str, devices: list[str], addresses: list[str]) -> None:
    """Exports devices as the namespaces of a subsystem, at each of the addresses."""
    spaces = " && ".join(
        f"mkdir namespaces/{number} && echo {device} > namespaces/{number}/device_path && "
        f"echo 1 > namespaces/{number}/enable" for number, device in enumerate(devices, 1))
    server.run("modprobe nvmet-rdma && cd /sys/kernel/config/nvmet && "
               f"mkdir subsystems/{subsystem} && cd subsystems/{subsystem} && echo 1 > attr_allow_any_host && {spaces}")
    for number, address in enumerate(addresses, 1):
        server.run(f"cd /sys/kernel/config/nvmet && mkdir ports/{number} && cd ports/{number} && "
                   f"echo ipv4 > addr_adrfam && echo rdma > addr_trtype && echo {address} > addr_traddr && "
                   f"echo {PORT} > addr_trsvcid && ln -s /sys/kernel/config/nvmet/subsystems/{subsystem} subsystems/{subsystem}")


def connect(client: Guest, subsystem: str, address: str, options: str = "") -> None:
    """Connects a controller; `options` are those of /dev/nvme-fabrics and begin with a comma."""
    client.run(f"modprobe nvme-rdma && echo 'transport=rdma,traddr={address},trsvcid={PORT},nqn={subsystem},hostid={HOST},"
               f"hostnqn=nqn.2014-08.org.nvmexpress:uuid:{HOST}{options}' > /dev/nvme-fabrics")


def disks(client: Guest, count: int) -> list[str]:
    """Waits for the namespaces of the first subsystem."""
    found = [f"/dev/nvme0n{number}" for number in range(1, count + 1)]
    wait_for(lambda: client.ok(" && ".join(f"[ -b {disk} ]" for disk in found)), 60, "the namespaces are there")
    return found
