# SPDX-License-Identifier: GPL-2.0
"""Exports, hosts and ports of a server, configured as its operator does in configfs."""

from .guest import Guest

TOP = "/sys/kernel/config/ibnbd"
EXPORTS, HOSTS, PORTS = f"{TOP}/exports", f"{TOP}/hosts", f"{TOP}/ports"


def write(folder: str, **files) -> str:
    """The commands that write to files of a folder."""
    return " && ".join([f"cd {folder}", *(f"echo '{value}' > {name}" for name, value in files.items())])


def make(guest: Guest, name: str, device: str, hosts: tuple[str, ...] = (), **files) -> str:
    """Makes an export and enables it; returns its folder."""
    folder = f"{EXPORTS}/{name}"
    guest.run(f"mkdir {folder} && {write(folder, device_path=device, **files, enable=1)}")
    for host in hosts:
        guest.run(link(name, host))
    return folder


def make_host(guest: Guest, name: str = "demo", **files) -> str:
    """Makes a host; returns its folder."""
    folder = f"{HOSTS}/{name}"
    guest.run(f"mkdir {folder} && {write(folder, **files)}")
    return folder


def make_port(guest: Guest, name: str, address: str, **files) -> str:
    """Makes a port and enables it; returns its folder."""
    folder = f"{PORTS}/{name}"
    guest.run(f"mkdir {folder} && {write(folder, address=address, **files, enable=1)}")
    return folder


def link(export: str, host: str = "demo") -> str:
    """The command that lets a host open an export."""
    return f"ln -s {HOSTS}/{host} {EXPORTS}/{export}/allowed_hosts/{host}"


def unlink(export: str, host: str = "demo") -> str:
    """The command that takes that back."""
    return f"busybox rm {EXPORTS}/{export}/allowed_hosts/{host}"


# Removes everything.
CLEAR = (f"for link in {EXPORTS}/*/allowed_hosts/*; do [ ! -L $link ] || busybox rm $link || exit 1; done; "
         f"for folder in {EXPORTS}/*/ {HOSTS}/*/ {PORTS}/*/ /sys/kernel/config/ibmsg/*/*/; do [ ! -d $folder ] || busybox rmdir $folder || exit 1; done")
