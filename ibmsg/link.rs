// SPDX-License-Identifier: GPL-2.0

//! What carries frames between two kernels, or inside one.
//!
//! A link makes message connections, one after the other or several at a time, and loses them; see
//! [`ibtrs_core::messages`]. Between machines, these are connections of the paths of an IBTRS session.

mod local;

pub(crate) use ibtrs_core::messages::{
    Arrived,
    Connection,
    Frame,
    Upper, //
};
pub(crate) use local::Local;
