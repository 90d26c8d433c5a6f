# SPDX-License-Identifier: GPL-2.0
"""The names of a block transport's parts: ours, or those of the kernel's own RNBD, for comparison."""

from dataclasses import dataclass

# For the guests' kernels.  Soft-RoCE has slots only if it is told so; none of the scenarios with this
# loses packets.
SLOTS_OVER_RXE = "ibtrs_server.slots_over_rxe=Y ibtrs_client.slots_over_rxe=Y"


@dataclass(frozen=True)
class Stack:
    name: str
    client_module: str
    server_module: str
    # The module that both need; modprobe -r leaves it.
    core_module: str
    # The server's parameter for the folder of the devices it may export.
    search_path: str
    sysfs_class: str
    disk: str

    @property
    def family(self) -> str:
        """The prefix of the names of its disks."""
        return self.disk.removeprefix("/dev/").rstrip("0123456789")

    def transport(self, side: str) -> str:
        """The transport's module of a side, "client" or "server"."""
        return self.core_module.replace("core", side)

    def sessions(self, side: str) -> str:
        """Where the sessions of a side are in sysfs."""
        return f"/sys/class/{self.transport(side).replace('_', '-')}"

    @property
    def map_file(self) -> str:
        return f"/sys/class/{self.sysfs_class}/ctl/map_device"

    def load_server(self) -> str:
        return f"modprobe {self.server_module} dev_search_path={self.search_path}"

    def load_client(self) -> str:
        return f"modprobe {self.client_module}"

    def unload(self, side: str) -> str:
        """Removes all its modules of a side, without modprobe, which takes longer
        to start than they to go."""
        upper = self.client_module if side == "client" else self.server_module
        return f"busybox rmmod {upper} {self.transport(side)} {self.core_module}"

    def exported(self, device: str) -> str:
        """The name by which its server exports a device."""
        # Mainline puts the folder and the device together as they are.
        return device.removeprefix("/") if self.search_path == "/" else device

    def map_device(self, device: str, address: str = "10.0.1.1", session: str = "demo") -> str:
        return (f'echo "sessname={session} path=ip:{address} device_path={self.exported(device)}"'
                f" > {self.map_file}")

    def unmap(self, number: int = 0, how: str = "normal") -> str:
        return f"echo {how} > /sys/block/{self.family}{number}/{self.family}/unmap_device"


STACKS = {
    "ibtrs": Stack("ibtrs", "ibnbd_client", "ibnbd_server", "ibtrs_core", "/dev", "ibnbd-client", "/dev/ibnbd0"),
    "mainline": Stack("mainline", "rnbd_client", "rnbd_server", "rtrs_core", "/", "rnbd-client", "/dev/rnbd0"),
}
