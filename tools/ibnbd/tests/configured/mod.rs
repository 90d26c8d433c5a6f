// SPDX-License-Identifier: GPL-2.0

//! Configfs and configuration files of a made-up tree.

#![allow(dead_code, unreachable_pub, reason = "each test uses a part")]

pub mod changes;
pub mod planned;
