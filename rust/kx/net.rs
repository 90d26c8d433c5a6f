// SPDX-License-Identifier: GPL-2.0

//! Network addresses and namespaces.

pub mod addr;
pub mod ns;
