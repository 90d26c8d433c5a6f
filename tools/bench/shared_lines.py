# SPDX-License-Identifier: GPL-2.0
"""Why functions of our modules execute locked instructions on lines that several processors use."""

# For each function: at least this many for an I/O need a reason.
NOTED = 0.05

REASONS = {
    "ibtrs_client::session::submit::Session::submit":
        "counts the request in the window of its connection, which other processors use as well when theirs is full",
    "ibtrs_client::session::multipath::Multipath::submit_to_one":
        "the same, of a session with several paths",
    "ibtrs_client::data::slot::answered":
        "the same count, when the request has ended, on whichever processor that is",
    "ibtrs_client::data::slot::end_if_over::kernel::sync::lock::spinlock::SpinLockIrqBackend":
        "the same, of a request that ends when the device has acknowledged it or its key is invalid",
    "ibtrs_client::data::receive::con::Con::answered":
        "the same, where the compiler made it a part of the caller",
    "rdma::qp::recv::recv_done::ibtrs_client::data::con::Con":
        "the same, where it made both a part of the caller",
    "rdma::qp::recv::recv_done::ibtrs_server::data::con::Con":
        "claims the tag for the path, as a part of the caller: another path may bring the same request again",
    "ibtrs_server::data::receive::con::Con::rdma::qp::Handler::received":
        "claims the tag for the path: another path may bring the same request again",
    "ibtrs_server::data::receive::con::Con::request":
        "the same claim, where the compiler did not make it a part of the caller",
    "ibnbd_server::session::Handle::ibtrs_server::data::con::upper::ServiceSession::request":
        "claims the bio of the tag; the processor on which the disk ended the last request gave it back",
    "kx::blk::vtable::Vtable::ibnbd_client::request::IbnbdMq::queue_rq":
        "with several disks, keeps a request that waits for the share of its disk",
    "ibnbd_client::queue::request::IbnbdMq::kx::blk::operations::IoOperations::io_done":
        "takes such a request, on the processor on which another one has ended",
    "ibtrs_server::data::send::answer::respond":
        "gives the tag back, on the processor on which the disk ended the request",
}


def readable(symbol: str) -> str:
    """The path of a function, from its mangled name (Rust's v0) and without parameters; other names as
    they are."""
    if not symbol.startswith("_R"):
        return symbol
    parts, at = [], 2
    while at < len(symbol):
        if symbol[at].isdigit():
            end = at
            while symbol[end].isdigit():
                end += 1
            length = int(symbol[at:end])
            # An underscore, if the name begins with a digit or one itself.
            at = end + (symbol[end] == "_")
            parts.append(symbol[at:at + length])
            at += length
        elif symbol[at] in "sBK" and "_" in symbol[at:]:
            # A number that tells two paths apart, a path from before, or a constant.
            at = symbol.index("_", at) + 1
        else:
            at += 1
    return "::".join(parts)


def without_reason(lines: list) -> list[str]:
    """Those functions of our modules that need a reason and have none."""
    return [readable(name) for name, module, runs in lines
            if module.startswith(("ibtrs", "ibnbd")) and runs >= NOTED and readable(name) not in REASONS]
