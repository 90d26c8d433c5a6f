# SPDX-License-Identifier: GPL-2.0
"""A guest whose root file system is a disk of the other guest, mapped by the initramfs that its own
Debian makes."""

import subprocess
from pathlib import Path

from . import paths, services
from .guest import Guest
from .lab import Boot, Installed

UUID = "0dd5e3a1-4a34-4c2b-9d0e-52f0f1bd1e2c"
FOLDER = "etc/ibtrs/root"
# As tool.md has it.
SESSION = services.CLIENT.replace('servers = ["10.0.1.1"]', 'paths = ["10.0.1.2,10.0.1.1"]\nqueue_timeout_s = -1')
FSTAB = f"""UUID={UUID} / ext4 errors=remount-ro 0 1
share /mnt/share 9p trans=virtio,version=9p2000.L,msize=512000 0 0
"""
# The command server is on the share.
NEEDS_SHARE = """[Unit]
RequiresMountsFor=/mnt/share
"""


def files(lab: Installed, key: str) -> dict[str, str]:
    """The files to put into the Debian, by their paths."""
    wire = lab.wire("client", 1)
    device = lab.add_device("client", 1)
    units = "etc/systemd/system"
    return {
        f"{FOLDER}/client.toml": SESSION,
        f"{FOLDER}/ip": "".join(f"{line.removeprefix('ip ')}\n" for line in wire),
        f"{FOLDER}/rdma": f"{device.removeprefix('rdma ')}\n",
        f"{FOLDER}/demo.key": f"{key}\n",
        "etc/fstab": FSTAB,
        "etc/hostname": "client\n",
        "etc/machine-id": "0123456789abcdef0123456789abcdef\n",
        # The folders that MODULES=most goes by are not those of the guests' modules.
        "etc/initramfs-tools/modules": "virtio_net\n",
        f"{units}/testbed.service.d/root.conf": NEEDS_SHARE,
    }


def run(base: Path, made: Path) -> subprocess.CompletedProcess[str]:
    command = [paths.TOP / "scripts/root-disk.sh", base, UUID, made]
    return subprocess.run(command, capture_output=True, text=True)


def refused(lab: Installed, session: str) -> str:
    """Why `update-initramfs` refuses a root disk in a session like this one."""
    base = lab.folder / "refused-files"
    file = base / FOLDER / "client.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(session)
    tried = run(base, lab.folder / "refused-disk")
    assert tried.returncode != 0, tried.stdout
    return tried.stdout + tried.stderr


def make(lab: Installed, key: str) -> Path:
    """Makes the disk, as an image for the server, and has the client boot from it from now on."""
    base, made = lab.folder / "root-files", lab.folder / "root-disk"
    for path, text in files(lab, key).items():
        file = base / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        if file.suffix == ".key":
            file.chmod(0o600)
    # A link is followed while the initramfs is made, where it leads to something.
    config = base / FOLDER / "client.toml"
    config.rename(base / "etc/ibtrs/client-of-the-root.toml")
    config.symlink_to("/etc/ibtrs/client-of-the-root.toml")
    units = base / "etc/systemd/system"
    units.joinpath("testbed.service").write_text((Path(__file__).parent / "guest/testbed.service").read_text())
    wants = units / "multi-user.target.wants"
    wants.mkdir()
    wants.joinpath("testbed.service").symlink_to("../testbed.service")
    done = run(base, made)
    assert done.returncode == 0, done.stdout + done.stderr
    lab.boots["client"] = Boot(made / "initrd.img", f"root=UUID={UUID} ro")
    return made / "data.img"


def check_unmounted(image: Path, guest: Guest) -> None:
    """The guest that has gone has left it as it should."""
    assert not guest.alive
    checked = subprocess.run(["/sbin/e2fsck", "-fn", image], capture_output=True, text=True)
    assert checked.returncode == 0 and "recovery" not in checked.stdout + checked.stderr, checked
