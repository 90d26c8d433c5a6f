// SPDX-License-Identifier: GPL-2.0

//! What client and server share at run time.

use kernel::prelude::*;

module! {
    type: Core,
    name: "ibtrs_core",
    authors: ["The ibtrs authors"],
    description: "Multipath RDMA block transport, shared part",
    license: "GPL",
}

struct Core;

impl kernel::Module for Core {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        Ok(Self)
    }
}
