// SPDX-License-Identifier: GPL-2.0

//! The two addresses of a path.

use ibtrs_core::convert::{
    self,
    Shown, //
};
use ibtrs_proto::{
    addr::Addr,
    origin::Origin, //
};
use kernel::{
    fmt,
    prelude::*, //
};
use rdma::cm::{
    Addrs,
    IncomingId, //
};

/// The addresses of a path.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ends {
    /// The client's.
    pub(crate) src: Addr,
    /// The server's.
    pub(crate) dst: Addr,
}

impl Ends {
    /// Returns the addresses of a connection.
    ///
    /// # Errors
    ///
    /// `EAFNOSUPPORT`: an address is of a family that paths do not have.
    pub(crate) fn of(addrs: &Addrs) -> Result<Self> {
        let addr = |addr| convert::addr(addr).ok_or(EAFNOSUPPORT);
        Ok(Self {
            src: addr(&addrs.peer)?,
            dst: addr(&addrs.local)?,
        })
    }

    /// Returns whether the client can have the address `src`, as far as the network allows to
    /// check. Over RoCE the client only claims that address in its request, but answers go to the
    /// client's GID. Over iWARP they go to the address itself; over InfiniBand a GID does not show
    /// an IP address.
    pub(crate) fn is_credible(&self, id: &IncomingId) -> bool {
        id.peer_roce_gid()
            .is_none_or(|gid| gid == self.src.roce_gid())
    }

    /// Returns the origin of a connection with these addresses, which are
    /// [credible](Self::is_credible).
    pub(crate) fn origin(&self, id: &IncomingId) -> Origin {
        match id.peer_port() {
            Some(port) => Origin::Port {
                lid: port.lid,
                gid: port.gid,
            },
            None => Origin::Addr(self.src),
        }
    }
}

/// As in the log and in sysfs: `src@dst`.
impl fmt::Display for Ends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_fmt(fmt!("{}@{}", Shown(self.src), Shown(self.dst)))
    }
}
