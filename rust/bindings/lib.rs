// SPDX-License-Identifier: GPL-2.0

//! Bindings to C that the [`kernel`] crate lacks: verbs, the RDMA connection manager, constants of
//! the block layer, and the C helpers of this tree.
//!
//! Types that the kernel crate binds are not bound again, so pointers pass between the two crates
//! without casts. Only `kx` and `rdma` may use this crate.

#![allow(
    clippy::all,
    clippy::cast_lossless,
    clippy::ptr_as_ptr,
    clippy::ref_as_ptr,
    clippy::undocumented_unsafe_blocks,
    dead_code,
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    improper_ctypes,
    // The oldest rustc does not know all of these.
    unknown_lints,
    unreachable_pub,
    unsafe_op_in_unsafe_fn,
    unused_imports,
    unnecessary_transmutes
)]

mod generated {
    include!(concat!(env!("IBTRS_OBJ"), "/rust/bindings/generated.rs"));
}

mod helpers {
    // In some configurations the kernel crate binds these types, too; ours take precedence.
    use super::generated::*;
    use super::generated::{hmac_sha256_ctx, ib_device};
    use kernel::{bindings::*, ffi};
    include!(concat!(
        env!("IBTRS_OBJ"),
        "/rust/bindings/helpers_generated.rs"
    ));
}

pub use generated::*;
pub use helpers::*;
