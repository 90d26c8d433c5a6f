# SPDX-License-Identifier: GPL-2.0
"""The small parts from which the testbed makes guests."""

import gzip
import os
import shutil
import subprocess
from types import SimpleNamespace

import pytest

from testbed import channel, initramfs, judge, klog, paths, stubs, tsc
from testbed.lab import together
from testbed.stack import STACKS


def names_in(archive) -> list[str]:
    return subprocess.run(["cpio", "-it", "--quiet"], input=gzip.decompress(archive.read_bytes()),
                          stdout=subprocess.PIPE, check=True).stdout.decode().split()


def test_the_first_root_is_an_archive_that_others_can_read(tmp_path, monkeypatch):
    monkeypatch.setenv("IBTRS_CACHE", str(tmp_path))
    archive = initramfs.build()
    assert archive == initramfs.build()
    assert {"init", "bin/busybox", "dev/console", "host"} <= set(names_in(archive))


def test_modules_of_the_first_root_keep_their_order(tmp_path, monkeypatch):
    monkeypatch.setenv("IBTRS_CACHE", str(tmp_path))
    modules = [tmp_path / name for name in ("virtio_net.ko", "9pnet.ko", "9p.ko")]
    for module in modules:
        module.write_text(module.name)
    archive = initramfs.build(modules)
    loaded = sorted(name for name in names_in(archive) if name.startswith("modules/"))
    assert [name.partition("-")[2] for name in loaded] == [module.name for module in modules]
    modules[0].write_text("another version")
    assert initramfs.build(modules) != archive


LISTING = """
DYNAMIC SYMBOL TABLE:
0000000000000000      DF *UND*	0000000000000000  Base        rbd_open
0000000000000000      DF *UND*	0000000000000000 (GFAPI_3.4.0) glfs_new
0000000000000000      DO *UND*	0000000000000000 (GFAPI_6.0)  glfs_fsync
0000000000000000      DF *UND*	0000000000000000              rados_read
00000000000d1c40 g    DF .text	0000000000000034  Base        fio_main
"""


def test_symbols_of_libraries_that_are_stood_in_for():
    wanted = stubs.symbols(LISTING)
    assert wanted == {"rbd_open": "", "glfs_new": "GFAPI_3.4.0", "glfs_fsync": "GFAPI_6.0", "rados_read": ""}
    assert stubs.version_script({name: wanted[name] for name in ("glfs_new", "glfs_fsync")}) == (
        "GFAPI_3.4.0 { glfs_new; };\nGFAPI_6.0 { glfs_fsync; };")


def test_fio_starts_with_the_libraries_that_stand_in():
    answer = subprocess.run(["fio", "--version"], capture_output=True, text=True,
                            env=os.environ | {"LD_LIBRARY_PATH": str(stubs.build())})
    assert (answer.returncode, answer.stderr) == (0, "")


def test_the_counter_is_measured_the_same_twice():
    first, second = tsc.khz(0.05), tsc.khz(0.05)
    assert first > 100_000
    assert abs(first - second) < first / 100


def test_commands_that_are_given_to_one_program():
    commands = ["modprobe a", "ip link set x up", "ip addr add 1 dev x", "rdma link add", "ip link show"]
    assert together(commands) == (r"modprobe a && printf '%s\n' 'link set x up' 'addr add 1 dev x' | ip -batch - && "
                                  r"rdma link add && printf '%s\n' 'link show' | ip -batch -")
    assert together([]) == "true"


def test_what_an_operator_types():
    ours, mainline = STACKS["ibtrs"], STACKS["mainline"]
    assert ours.map_device("/dev/nullb0", session="s") == (
        'echo "sessname=s path=ip:10.0.1.1 device_path=/dev/nullb0"'
        " > /sys/class/ibnbd-client/ctl/map_device")
    assert "device_path=dev/nullb0" in mainline.map_device("/dev/nullb0")
    assert ours.unmap(2, "force") == "echo force > /sys/block/ibnbd2/ibnbd/unmap_device"


LAYERS = os.path.join(os.path.dirname(__file__), "../../../scripts/check-layers.sh")


@pytest.fixture
def tree(tmp_path):
    """An empty tree with the check of the layers in it."""
    scripts = os.path.dirname(LAYERS)
    shutil.copytree(scripts, tmp_path / "scripts")
    shutil.copy(os.path.join(scripts, "../Kbuild"), tmp_path)
    for crate in ("rust/kx", "rust/rdma", "rust/bindings", "rust/helpers", "rust/proto/ibtrs",
                 "rust/ibtrs-core", "ibtrs-client", "ibtrs-server", "ibnbd/client", "ibnbd/server"):
        (tmp_path / crate).mkdir(parents=True)
        (tmp_path / crate / "lib.rs").write_text("//! Nothing unsafe here.\nuse core::fmt;\n")
    return tmp_path


def check_layers(tree):
    return subprocess.run([tree / "scripts/check-layers.sh"], capture_output=True, text=True)


def test_clean_layers_pass(tree):
    (tree / "rust/kx/lib.rs").write_text("// SAFETY: it is.\nunsafe { f() };\n")
    (tree / "ibtrs-client/lib.rs").write_text(
        "#![allow(unsafe_code)]\nmodule! { }\n// unsafe in a comment\nlet x = \"unsafe\";\n")
    assert check_layers(tree).returncode == 0, check_layers(tree).stdout


@pytest.mark.parametrize("crate, line", [
    ("ibtrs-client", "unsafe { f() };"),
    ("ibnbd/server", "    let x = unsafe { f() };"),
    ("rust/proto/ibtrs", "unsafe impl Send for X {}"),
    ("rust/proto/ibtrs", "use kernel::prelude::*;"),
    ("rust/proto/ibtrs", "let x = bindings::GFP_KERNEL;"),
    ("ibtrs-client", "use ibtrs_server::Session;"),
    ("ibtrs-server", "use ibtrs_client::Session;"),
    ("ibnbd/client", "use ibtrs_server::Session;"),
    ("ibnbd/server", "use ibnbd_client::Disk;"),
    ("rust/kx", "use rdma::Qp;"),
    ("rust/rdma", "use ibtrs_proto::Imm;"),
    ("rust/ibtrs-core", "use ibtrs_client::Session;"),
    ("ibtrs-client/deep", "#![allow(unsafe_code)]"),
])
def test_a_broken_layer_is_found(tree, crate, line):
    folder = tree / crate
    folder.mkdir(exist_ok=True)
    (folder / "other.rs").write_text(f"{line}\n")
    done = check_layers(tree)
    assert done.returncode == 1
    assert f"{crate}/other.rs:1:" in done.stdout


def with_crate(tree, name):
    """A crate of this tree in that one."""
    folder = tree / name
    shutil.rmtree(folder)
    shutil.copytree(os.path.join(os.path.dirname(LAYERS), "..", name), folder)
    return folder


@pytest.fixture
def client(tree):
    """The client's transport in that tree."""
    return with_crate(tree, "ibtrs-client")


@pytest.fixture
def server(tree):
    """The server's transport in that tree."""
    return with_crate(tree, "ibtrs-server")


def check_modules(tree):
    return subprocess.run([tree / "scripts/layers.py"], capture_output=True, text=True)


def test_the_layers_in_a_crate_are_checked(tree, client):
    assert check_layers(tree).returncode == 0, check_layers(tree).stdout
    with (client / "types.rs").open("a") as source:
        source.write("use crate::env::Env;\n")
    done = check_layers(tree)
    assert done.returncode == 1
    assert "env is not below types" in done.stdout


@pytest.mark.parametrize("file, line, why", [
    ("data/link.rs", "use crate::session::Session;", "session is not below data"),
    ("data/stats.rs", "use crate::{env::Env, path::attempt::Attempt};", "path is not below data"),
    ("data/submit.rs", "fn f(path: &crate::Path) {}", "path is not below data"),
    ("path/attempt.rs", "const X: u32 = crate::session::X;", "session is not below path"),
    ("path/state.rs", "use super::super::session::Session;", "session is not below path"),
    ("path.rs", "mod more { use super::super::sysfs::CLASS; }", "sysfs is not below path"),
    ("env.rs", "pub(crate) use self::super::data::link::Link;", "data is not below env"),
    ("session/paths.rs", "use crate::sysfs;", "sysfs is not below session"),
    ("more/deep.rs", "fn f() {}", "in no layer of ibtrs-client"),
])
def test_a_use_of_a_module_that_is_not_below_is_found(tree, client, file, line, why):
    folder = client / file
    folder.parent.mkdir(exist_ok=True)
    with folder.open("a") as source:
        source.write(f"{line}\n")
    at = len(folder.read_text().splitlines())
    done = check_modules(tree)
    assert done.returncode == 1
    assert f"ibtrs-client/{file}:{at}: " in done.stdout and why in done.stdout


@pytest.mark.parametrize("file, line, why", [
    ("types.rs", "use crate::data::con::Con;", "data is not below types"),
    ("storage/source.rs", "use crate::data::con::Con;", "data is not below storage"),
    ("storage/buffers.rs", "use crate::session::Session;", "session is not below storage"),
    ("env/memory.rs", "use crate::server::Server;", "server is not below env"),
    ("data/con.rs", "use crate::path::Path;", "path is not below data"),
    ("data/send/answer.rs", "fn f(session: &crate::session::Session) {}", "session is not below data"),
    ("path.rs", "use crate::sysfs::PathDir;", "sysfs is not below path"),
    ("path/teardown.rs", "use crate::session::Session;", "session is not below path"),
    ("session/lines.rs", "use crate::server::Server;", "server is not below session"),
])
def test_the_layers_of_the_server_are_checked(tree, server, file, line, why):
    assert check_modules(tree).returncode == 0, check_modules(tree).stdout
    with (server / file).open("a") as source:
        source.write(f"{line}\n")
    at = len((server / file).read_text().splitlines())
    done = check_modules(tree)
    assert done.returncode == 1
    assert f"ibtrs-server/{file}:{at}: " in done.stdout and why in done.stdout


# In a file that a circle needs, by crate.
CIRCLES = {
    "ibnbd/client": ("device/informed.rs", "use super::scanning;"),
    "rust/rdma": ("qp/sendq/slot.rs", "use super::queue::Draft;"),
}


@pytest.mark.parametrize("crate, file, line, why", [
    ("ibnbd/server", "peer.rs", "use crate::session::Session;", "session is not below peer"),
    ("ibnbd/server", "config/revoke.rs", "use crate::session::Session;", "session is not below config"),
    ("ibnbd/server", "export/dir.rs", "use crate::session::view::View;", "session is not below export"),
    ("ibnbd/server", "device/io/requests.rs", "fn f(session: &crate::session::Session) {}", "session is not below device"),
    ("ibnbd/server", "session/stop.rs", "use crate::sysfs;", "sysfs is not below session"),
    ("ibnbd/server", "device/io/requests.rs", "use super::backlog::Backlog;", "a circle of files:"),
    ("ibnbd/server", "session/open.rs", "use super::admin;", "a circle of files:"),
    ("ibnbd/client", "events.rs", "use crate::device::Device;", "device is not below events"),
    ("ibnbd/client", "registry.rs", "use crate::mapping::Mapping;", "mapping is not below registry"),
    ("ibnbd/client", "request.rs", "fn f(disk: &crate::dispatch::DiskQueue) {}", "dispatch is not below request"),
    ("ibnbd/client", "device/changes.rs", "use crate::control;", "control is not below device"),
    ("ibnbd/client", "device/scanning.rs", "use super::informed;", "a circle of files:"),
    ("rust/kx", "sysfs/node.rs", "use crate::blk::GenDisk;", "blk is not below sysfs"),
    ("rust/kx", "sg.rs", "fn f(io: &crate::io::IoHandle) {}", "io is not below sg"),
    ("rust/kx", "sync.rs", "use crate::work::Queue;", "work is not below sync"),
    ("rust/kx", "blk/bdev.rs", "use super::bio::BioSpec;", "a circle of files:"),
    ("rust/kx", "blk/operations/disk_data.rs", "use crate::blk::tag_set::TagSet;", "a circle of files:"),
    ("rust/kx", "sysfs/node.rs", "use super::attr::Attr;", "a circle of files:"),
    ("rust/rdma", "pd.rs", "use crate::mr::Mr;", "mr is not below pd"),
    ("rust/rdma", "pd/keep.rs", "use crate::dma::DmaBuf;", "dma is not below pd"),
    ("rust/rdma", "dma/pieces.rs", "use crate::sendq::Chain;", "qp is not below dma"),
    ("rust/rdma", "imm.rs", "fn f(rings: &crate::recv::Rings) {}", "qp is not below imm"),
    ("rust/rdma", "qp/sendq/queue.rs", "use crate::slot::Slot;", "a circle of files:"),
])
def test_the_layers_of_each_crate_are_checked(tree, crate, file, line, why):
    folder = with_crate(tree, crate)
    added = [(file, line)]
    if why.startswith("a circle") and crate in CIRCLES:
        added.append(CIRCLES[crate])
    for name, text in added:
        with (folder / name).open("a") as source:
            source.write(f"{text}\n")
    done = check_modules(tree)
    assert done.returncode == 1
    assert f"{crate}/{file}:" in done.stdout and why in done.stdout


def test_a_circle_of_decisions_is_found(tree):
    folder = with_crate(tree, "rust/proto/ibtrs")
    with (folder / "auth/key.rs").open("a") as source:
        source.write("use super::exchange::mix;\n")
    done = check_modules(tree)
    assert done.returncode == 1
    assert "a circle of files:" in done.stdout and "  rust/proto/ibtrs/auth/key.rs:" in done.stdout


@pytest.mark.parametrize("file, line", [
    ("data/con.rs", "use crate::data::claims::Claim;"),
    ("storage/landing.rs", "use super::chunk::Chunk;"),
    ("session/service.rs", "use crate::session::sessions::Sessions;"),
])
def test_files_of_the_server_that_use_each_other_are_found(tree, server, file, line):
    with (server / file).open("a") as source:
        source.write(f"{line}\n")
    done = check_modules(tree)
    assert done.returncode == 1
    assert "a circle of files:" in done.stdout and f"  ibtrs-server/{file}:" in done.stdout


@pytest.mark.parametrize("file, line", [
    ("data/stats.rs", "use super::submit::PathIo;"),
    ("path/drain.rs", "use crate::path::attempt::Resources;"),
    ("session/requeue_list.rs", "use crate::session::requeue;"),
])
def test_files_that_use_each_other_are_found(tree, client, file, line):
    with (client / file).open("a") as source:
        source.write(f"{line}\n")
    done = check_modules(tree)
    assert done.returncode == 1
    assert "a circle of files:" in done.stdout and f"  ibtrs-client/{file}:" in done.stdout


@pytest.mark.parametrize("file, line", [
    ("data/stats.rs", "// use crate::session::Session;"),
    ("data/stats.rs", 'const X: &str = "crate::session::Session";'),
    ("data/stats.rs", "#[cfg(IBTRS_KUNIT)]\n#[kunit_tests(x)]\nmod tests {\n    use crate::session::Session;\n}"),
    ("session/paths.rs", "use crate::{data::link::Link, path::Path, types::Dir};"),
    ("path/attempt/connect.rs", "use crate::path::Path;"),
])
def test_other_uses_of_modules_pass(tree, client, file, line):
    with (client / file).open("a") as source:
        source.write(f"{line}\n")
    assert check_modules(tree).returncode == 0, check_modules(tree).stdout


def test_logs_are_kept_of_a_guest_that_never_answered(tmp_path, monkeypatch):
    monkeypatch.setenv("IBTRS_CACHE", str(tmp_path))
    console = tmp_path / "lab/client-1/console.log"
    console.parent.mkdir(parents=True)
    console.write_text("booting")
    guest = SimpleNamespace(name="client", alive=False, channel=None)
    kept = judge.keep(SimpleNamespace(folder=tmp_path / "lab", guests={"client": guest}), "a scenario")
    assert (kept / "client-1/console.log").read_text() == "booting"


def test_the_state_of_a_guest_that_answers_half_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("IBTRS_CACHE", str(tmp_path))
    (tmp_path / "lab").mkdir()

    def run(command: str, timeout: float, check: bool) -> str:
        if "rdma" in command:
            raise channel.CommandFailed("it took longer")
        return f"answered {command}"

    guest = SimpleNamespace(
        name="client", alive=True, run=run, channel=SimpleNamespace(report=lambda: "", closed=False),
        qmp=lambda *_, **__: "CPU#0\nRIP=ffffffff81000000 RFL=1\nFPR0=0\n")
    folder = tmp_path / "artefacts"
    monkeypatch.setattr(judge.time, "strftime", lambda _: "now")
    (folder / "now-it").mkdir(parents=True)
    kept = judge.keep(SimpleNamespace(folder=tmp_path / "lab", guests={"client": guest}), "it")
    state = (kept / "client-state.txt").read_text()
    assert "answered cat /proc/interrupts" in state and "it took longer" in state
    assert state.count("RIP=ffffffff81000000") == judge.LOOKS and "FPR" not in state

    def silent(*_, **__) -> str:
        raise RuntimeError("the emulator does not answer")

    guest.qmp = silent
    kept = judge.keep(SimpleNamespace(folder=tmp_path / "lab", guests={"client": guest}), "it")
    assert "answered cat /proc/interrupts" in (kept / "client-state.txt").read_text()


def test_reports_of_a_kernel_that_has_nothing_of_ours_do_not_count(tmp_path, capsys):
    report = "[ 122.1] WARNING: drivers/infiniband/sw/rxe/rxe_task.c:38 at rxe_sched_task+0x8e/0xa0 [rdma_rxe], CPU#1"
    loaded = "[ 15.4] ibtrs_core: loading out-of-tree module taints kernel."

    def found(*lines: str) -> list[str]:
        console = tmp_path / "console.log"
        console.write_text("".join(f"{line}\n" for line in lines))
        guest = SimpleNamespace(name="client", log=klog.Log(console))
        return judge.kernel_reports(SimpleNamespace(guests={"client": guest}))

    assert found(report) == []
    assert report in capsys.readouterr().out
    assert found(loaded, report) == [f"kernel log of client:\n{report}"]


@pytest.mark.parametrize("target", ["", "/elsewhere"])
def test_scripts_have_a_checkout_in_the_same_folders(target, monkeypatch):
    monkeypatch.setenv("CARGO_TARGET_DIR", target)
    said = subprocess.run(["bash", "-c", '. scripts/env.sh; printf "%s\\n" "$MODULES" "$CRATES"'], cwd=paths.TOP,
                          check=True, stdout=subprocess.PIPE, text=True).stdout
    assert said.split() == [str(paths.modules("")), str(paths.crates())]
    assert target in said
