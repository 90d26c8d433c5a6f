// SPDX-License-Identifier: GPL-2.0

//! CRC-32C from the kernel's library, which uses the processor's CRC instructions if there are any.
//!
//! # Examples
//!
//! ```
//! use kx::crc::crc32c;
//!
//! // The checksum of a head and its data, in two parts.
//! let crc = crc32c(crc32c(!0, b"head"), b"data") ^ !0;
//! # let _ = crc;
//! ```
//!
//! C header: [`include/linux/crc32.h`](srctree/include/linux/crc32.h)

use ibtrs_bindings as bindings;

/// Continues a CRC-32C with `bytes`. The caller begins with all ones, and inverts the final value.
///
/// # Context
///
/// *any*.
#[inline]
pub fn crc32c(crc: u32, bytes: &[u8]) -> u32 {
    // SAFETY: The callee only reads the slice.
    unsafe { bindings::crc32c(crc, bytes.as_ptr().cast(), bytes.len()) }
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(kx_crc)]
mod tests {
    use super::*;
    use crate::{
        mm::{
            Node,
            PageBlock, //
        },
        sg::SgList, //
    };
    use core::ptr::NonNull;
    use kernel::{
        page::PAGE_SIZE,
        prelude::*, //
    };

    #[test]
    fn check_value() {
        assert_eq!(!crc32c(u32::MAX, b"123456789"), 0xE306_9283);
        let two = crc32c(crc32c(u32::MAX, b"1234"), b"56789");
        assert_eq!(!two, 0xE306_9283);
        assert_eq!(crc32c(7, b""), 7);
    }

    /// Blocks and scatterlists, whose data crosses pages, have the same CRC as plain bytes.
    #[test]
    fn of_memory() -> Result {
        let block = PageBlock::new(1, Node::ANY)?;
        let len = 2 * PAGE_SIZE;
        let mut bytes = KVec::from_elem(0u8, len, GFP_KERNEL)?;
        for (at, byte) in bytes.iter_mut().enumerate() {
            // CAST: Any byte will do.
            *byte = (at % 251) as u8;
        }
        block.copy_in(0, &bytes)?;
        for (offset, len) in [
            (0, len),
            (0, 0),
            (1, PAGE_SIZE),
            (512, 512),
            (PAGE_SIZE - 1, 3),
        ] {
            let expected = crc32c(5, &bytes[offset..offset + len]);
            assert_eq!(block.crc32c(5, offset, len), Ok(expected));
            let mut list = KBox::init(pin_init::init_zeroed::<SgList<1>>(), GFP_KERNEL)?;
            let table = list.as_table();
            let start = NonNull::new(block.as_ptr().wrapping_add(offset)).ok_or(EINVAL)?;
            if len > 0 {
                // SAFETY: The block is in the linear mapping, and outlives the table's use.
                unsafe { table.set_buf(start, u32::try_from(len)?)? };
            }
            // SAFETY: As above; nobody has a reference to the block's content.
            assert_eq!(unsafe { table.crc32c(5) }, expected);
        }
        assert_eq!(block.crc32c(5, 1, len), Err(EINVAL));
        Ok(())
    }
}
