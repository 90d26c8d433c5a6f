// SPDX-License-Identifier: GPL-2.0

//! Socket addresses and network namespaces.

pub mod addr;
pub mod ns;
