# SPDX-License-Identifier: GPL-2.0
"""Misuses of the crates with unsafe code that must not compile: the tests compile small crates with
the command by which a driver was compiled."""

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from testbed.paths import TOP

CACHE = Path(os.environ.get("IBTRS_CACHE") or Path.home() / ".cache" / "ibtrs")
DRIVER = "ibnbd/client"
USES = """//! Not to be linked.
use kernel::{alloc::flags::GFP_KERNEL, prelude::*, sync::Arc};
use kx::{blk::{Operations, Request, Status}, configfs::Directory, io::IoHandle, net::addr::SockAddr, sync::RcuPtr, sysfs::*};
use rdma::{cm::{ActiveId, CmId, ConnParam, ConnRequest, IncomingId, Listener}, dma::{DmaBuf, DmaPages, DmaPieces, MappedIo}, mr::{IoMr, Mr}, pd::Pd, qp::Handler, sendq::{Chain, Signal},
           sge::{Remote, Sge}};
"""
# Code that must compile, so that the others fail for the given reason.
GOOD = """
/// As it is meant.
pub fn good<D: Operations>(rq: Request<D>, io: MappedIo, pd: &Pd, ctx: StoreCtx<'_, Arc<u32>>) -> Result<IoHandle> {
    rq.end(Status::OK);
    let _ = ctx.keep_module::<Here>()?.remove_self();
    Ok(io.unmap(pd))
}
/// A read from a peer, and its end.
pub fn read<H: Handler>(chain: &mut Chain<'_, H>, mut to: DmaPieces, done: rdma::sendq::Position) {
    chain.rdma_read(Remote::default(), to.sinks(8), Signal::None);
    to.end_reads(done);
    drop(to.unmap());
}
struct Here;
impl kernel::ModuleMetadata for Here {
    const NAME: &'static CStr = c"here";
    const THIS_MODULE: kernel::ThisModule = unsafe { kernel::ThisModule::from_ptr(core::ptr::null_mut()) };
}
"""
# The misuse, and the compiler's number for it.
MISUSES = {
    "an element with any address": ("E0624", "fn f(p: &Pd) -> Sge { Sge::new(p, 1, 1, 0) }"),
    "an element made of its fields": ("E0451", "fn f(s: Sge) -> Sge { Sge { domain: 1, ..s } }"),
    "the scatter list without its I/O": ("E0624", "fn f(io: &MappedIo) { io.as_raw(); }"),
    "an I/O that is unmapped twice": ("E0382", "fn f(io: MappedIo, p: &Pd) { io.unmap(p); io.unmap(p); }"),
    "elements of an I/O that is unmapped":
        ("E0505", "fn f(io: MappedIo, p: &Pd) -> usize { let list = io.sges(p); io.unmap(p); list.count() }"),
    "a read from a peer into a buffer for sending":
        ("E0271", "fn f<H: Handler>(c: &mut Chain<'_, H>, b: &DmaBuf) -> Result "
                  "{ Ok(c.rdma_read(Remote::default(), [b.sge(0, 8)?], Signal::None)) }"),
    "a read from a peer into the memory of an I/O":
        ("E0271", "fn f<H: Handler>(c: &mut Chain<'_, H>, io: &MappedIo, p: &Pd) "
                  "{ c.rdma_read(Remote::default(), io.sges(p), Signal::None) }"),
    "a read from a peer into memory that is unmapped":
        ("E0505", "fn f<H: Handler>(c: &mut Chain<'_, H>, mut d: DmaPieces) "
                  "{ let to = d.sinks(8); d.unmap(); c.rdma_read(Remote::default(), to, Signal::None) }"),
    "reads from a peer that two connections post at a time":
        ("E0499", "fn f<H: Handler>(c: &mut Chain<'_, H>, o: &mut Chain<'_, H>, d: &mut DmaPieces) "
                  "{ let (a, b) = (d.sinks(8), d.sinks(8)); c.rdma_read(Remote::default(), a, Signal::None); "
                  "o.rdma_read(Remote::default(), b, Signal::None) }"),
    "a buffer that is borrowed to be written while the device reads it":
        ("E0599", "fn f(b: &mut DmaBuf) -> &mut [u8] { b.bytes_mut() }"),
    "a region that describes other memory later":
        ("E0599", "fn f(mr: &mut Mr, p: &DmaPages) { mr.map_pages(p); }"),
    "a region of pages in the place of one for I/O":
        ("E0596", "fn f(io: &mut IoMr, mr: &mut Mr) { core::mem::swap(&mut **io, mr) }"),
    "a completion that a driver makes up":
        ("E0451", "fn f() -> rdma::sendq::Position { rdma::sendq::Position { queue: 1, number: 1 } }"),
    "a request that is ended twice":
        ("E0382", "fn f<D: Operations>(r: Request<D>) { r.end(Status::OK); r.end(Status::OK); }"),
    "two owners of a request":
        ("E0277", "fn f<D: Operations>(r: &Request<D>) -> Request<D> { Request::clone(r) }"),
    "a request out of a pointer":
        ("E0624", "fn f<D: Operations>(r: &Request<D>) { unsafe { Request::<D>::from_raw(core::ptr::null_mut()) }; }"),
    "an id that is left to the connection manager": ("E0624", "fn f(id: CmId) { unsafe { id.release() } }"),
    "two threads that bind an id": ("E0596", "fn f(id: &ActiveId, addr: &SockAddr) { let _ = id.resolve_addr(None, addr, 1); }"),
    "a request that is answered twice": ("E0382", "fn f(id: IncomingId) { let _ = id.reject(&[]); let _ = id.reject(&[]); }"),
    "a queue pair of a request that its handler may return": ("E0599", "fn f(request: &ConnRequest) { request.shared(); }"),
    "a listener that connects": ("E0599", "fn f(id: &mut Listener, param: ConnParam<'_>) { let _ = id.connect(param); }"),
    "a file that removes itself and does not keep its module":
        ("E0599", "fn f(ctx: StoreCtx<'_, Arc<u32>>) { ctx.remove_self(); }"),
    "the name of a device that outlives it":
        ("E0515", "fn f(d: Device<Arc<u32>>) -> &'static CStr { d.name() }"),
    "a read section that ends in another task":
        ("E0277", "fn f(p: &'static RcuPtr<u32>) { fn other<T: Send>(_: T) {} other(p.read()); }"),
    "a file of configfs whose function needs a value of one thread":
        ("E0277", "fn f<D: Directory>(here: core::marker::PhantomData<*mut u8>) "
                  "{ kx::configfs::Attr::<D>::ro(c\"x\", move |_: &D, _: &mut Buf<'_>| { let _here = here; Ok(()) }); }"),
    "a value that outlives its read section":
        ("E0515", "fn f(p: &'static RcuPtr<u32>) -> Option<&'static u32> { p.read().get() }"),
}


def command() -> tuple[Path, list[str]]:
    """Where, and with what, the driver was compiled last."""
    built = [file for flavour in ("fast", "debug") for file in CACHE.glob(f"build/*-{flavour}/{DRIVER}/.lib.o.cmd")
             if f" {TOP}/{DRIVER}/lib.rs " in file.read_text()]
    if not built:
        pytest.skip("no modules of this checkout")
    file = max(built, key=lambda file: file.stat().st_mtime)
    words = shlex.split(re.search(r":= (.*?) ;", file.read_text())[1])
    while "=" in words[0]:
        words.pop(0)
    keep = words[:words.index("--out-dir")]
    name = keep.index("--crate-name")
    keep[name:name + 2] = ["--crate-name", "misuse", "--extern", "rdma"]
    return file.parents[2], [word for word in keep if not word.startswith("--emit=metadata")]


def compile_it(tmp_path: Path, text: str) -> subprocess.CompletedProcess:
    where, words = command()
    source = tmp_path / "misuse.rs"
    source.write_text(USES + text)
    return subprocess.run([*words, "-Aunused", "-Amissing_docs", f"--emit=metadata={tmp_path}/misuse.rmeta", source],
                          cwd=where, env={**os.environ, "RUSTC_BOOTSTRAP": "1"}, text=True,
                          stderr=subprocess.PIPE, timeout=120, check=False)


def test_the_right_use_compiles(tmp_path):
    done = compile_it(tmp_path, GOOD)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("what", MISUSES)
def test_misuse_does_not_compile(tmp_path, what):
    number, text = MISUSES[what]
    done = compile_it(tmp_path, text)
    assert done.returncode != 0 and set(re.findall(r"^error\[(E\d+)\]", done.stderr, re.MULTILINE)) == {number}, \
        done.stderr
