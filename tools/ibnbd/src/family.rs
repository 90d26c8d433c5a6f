// SPDX-License-Identifier: GPL-2.0

//! Locations of the files of our modules and of the kernel's own.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The modules that something belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// `ibtrs_*` and `ibnbd_*`.
    Ibnbd,
    /// The kernel's own `rtrs_*` and `rnbd_*`, which the command shows and does not change.
    Rnbd,
}

impl Family {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Ibnbd, Self::Rnbd];

    /// The prefix of the names of its disks; also the folder of a disk with its files.
    pub const fn disk(self) -> &'static str {
        match self {
            Self::Ibnbd => "ibnbd",
            Self::Rnbd => "rnbd",
        }
    }

    /// The class of the client's or the server's sessions.
    pub const fn sessions(self, side: Side) -> &'static str {
        match (self, side) {
            (Self::Ibnbd, Side::Client) => "/sys/class/ibtrs-client",
            (Self::Ibnbd, Side::Server) => "/sys/class/ibtrs-server",
            (Self::Rnbd, Side::Client) => "/sys/class/rtrs-client",
            (Self::Rnbd, Side::Server) => "/sys/class/rtrs-server",
        }
    }

    /// The device that controls the block client or server.
    pub const fn control(self, side: Side) -> &'static str {
        match (self, side) {
            (Self::Ibnbd, Side::Client) => "/sys/class/ibnbd-client/ctl",
            (Self::Ibnbd, Side::Server) => "/sys/class/ibnbd-server/ctl",
            (Self::Rnbd, Side::Client) => "/sys/class/rnbd-client/ctl",
            (Self::Rnbd, Side::Server) => "/sys/class/rnbd-server/ctl",
        }
    }

    /// The module of the block client or server.
    pub const fn module(self, side: Side) -> &'static str {
        match (self, side) {
            (Self::Ibnbd, Side::Client) => "ibnbd_client",
            (Self::Ibnbd, Side::Server) => "ibnbd_server",
            (Self::Rnbd, Side::Client) => "rnbd_client",
            (Self::Rnbd, Side::Server) => "rnbd_server",
        }
    }
}

/// One end of a session.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// The machine that uses disks.
    Client,
    /// The machine whose disks are used.
    Server,
}

impl Side {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Client, Self::Server];

    /// As in tables.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Server => "server",
        }
    }
}
