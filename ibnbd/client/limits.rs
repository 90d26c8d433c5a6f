// SPDX-License-Identifier: GPL-2.0

//! Turns the server's description of a device into the limits of the disk.
//!
//! No value of the description is trusted, because the block layer does not check all of them.

use crate::request::MAX_SEGMENTS;
use ibnbd_proto::msg::{
    OpenRsp,
    MAX_SECTORS, //
};
use ibtrs_client::Session;
use kernel::{
    page::PAGE_SIZE,
    prelude::*, //
};
use kx::blk::Limits;

/// Maximum number of sectors that a request without data can cover: its length is a 32-bit number
/// of bytes.
const MAX_DATALESS_SECTORS: u32 = u32::MAX >> 9;

/// Largest physical block size, `io_min` and `io_opt` that the client believes, in bytes. The
/// kernel reads ahead twice `io_opt`, so a larger value could exhaust the client's memory; it
/// counts as unknown.
const MAX_HINT_BYTES: u32 = 8 << 20;

/// The largest request that the session can carry.
#[derive(Clone, Copy)]
pub(crate) struct Carrier {
    max_io_bytes: u32,
    max_segments: u16,
}

impl Carrier {
    pub(crate) fn of(transport: &Session) -> Self {
        Self {
            max_io_bytes: transport.max_io_bytes(),
            max_segments: transport.max_segments(),
        }
    }
}

/// Returns the limits of the disk that `rsp` describes.
///
/// # Errors
///
/// `EFBIG` if the disk has more than [`MAX_SECTORS`]; `EINVAL` if the session cannot carry a
/// logical block or a page in one request.
pub(crate) fn of_disk(rsp: &OpenRsp, carrier: Carrier) -> Result<Limits> {
    // The decoder accepts no smaller block. The compiler does not always see that, and would
    // generate a panic for the divisions.
    let block = u32::from(rsp.logical_block_size).max(1 << 9);
    let physical = match rsp.physical_block_size_bytes() {
        said if said <= MAX_HINT_BYTES => said.max(block),
        _ => block,
    };
    if rsp.nsectors > MAX_SECTORS {
        return Err(EFBIG);
    }
    if carrier.max_io_bytes < block.max(PAGE_SIZE as u32) {
        return Err(EINVAL);
    }
    let whole_blocks = |sectors: u32| {
        let sectors = sectors.min(MAX_DATALESS_SECTORS);
        sectors - sectors % (block >> 9)
    };
    let whole_bytes = |bytes: u32| bytes - bytes % block;
    let max_discard_sectors = whole_blocks(rsp.max_discard_sectors);
    // Not a power of two if the disk is a stripe set.
    let granularity = if rsp.discard_granularity % block == 0 {
        rsp.discard_granularity.max(physical)
    } else {
        physical
    };
    let max_secure_erase_sectors = match rsp.details {
        Some(details) => whole_blocks(details.max_secure_erase_sectors),
        None if rsp.secure_discard == 0 => 0,
        // C servers truncate this limit to 16 bits; the limit of discards replaces it.
        None => max_discard_sectors.max(whole_blocks(u32::from(rsp.secure_discard))),
    };
    let details = rsp.details.unwrap_or_default();
    let io_min = if details.io_min % physical == 0 && details.io_min <= MAX_HINT_BYTES {
        details.io_min.max(physical)
    } else {
        physical
    };
    let io_opt = match details.io_opt {
        said if said <= MAX_HINT_BYTES => said - said % physical,
        _ => 0,
    };
    Ok(Limits {
        logical_block_bytes: block,
        physical_block_bytes: physical,
        alignment_offset_bytes: whole_bytes(details.alignment_offset % physical),
        io_min_bytes: io_min,
        io_opt_bytes: io_opt,
        // The server's kernel splits requests that are too large for its disk, which costs less
        // than more messages.
        max_hw_sectors: carrier.max_io_bytes >> 9,
        max_segments: carrier.max_segments.min(MAX_SEGMENTS),
        virt_boundary_mask: PAGE_SIZE - 1,
        // A memory registration can begin and end at any byte.
        dma_alignment_mask: 3,
        max_discard_sectors,
        discard_granularity_bytes: granularity,
        discard_alignment_bytes: rsp.discard_alignment % granularity,
        max_secure_erase_sectors,
        max_write_zeroes_sectors: whole_blocks(rsp.max_write_zeroes_sectors),
        write_zeroes_unmaps: details.zeroes_unmap,
        write_cache: rsp.cache.writeback,
        fua: rsp.cache.writeback && rsp.cache.fua,
        rotational: details.rotational,
        // No stable pages, even if the server's disk needs them: it writes from the server's
        // copy. Disks with checksums add them.
        ..Limits::default()
    })
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(ibnbd_client_limits)]
mod tests {
    use super::*;
    use ibnbd_proto::msg::{
        CachePolicy,
        Details, //
    };

    const CARRIER: Carrier = Carrier {
        max_io_bytes: 126976,
        max_segments: 128,
    };

    fn rsp() -> OpenRsp {
        OpenRsp {
            nsectors: 1 << 20,
            max_write_zeroes_sectors: 1000,
            max_discard_sectors: u32::MAX,
            discard_granularity: 4096,
            discard_alignment: 512,
            physical_block_size: 4096,
            logical_block_size: 512,
            secure_discard: 1,
            cache: CachePolicy {
                writeback: true,
                fua: true,
            },
            ..OpenRsp::default()
        }
    }

    #[test]
    fn plain() -> Result {
        let limits = of_disk(&rsp(), CARRIER)?;
        assert_eq!(limits.max_hw_sectors, 248);
        assert_eq!(limits.max_discard_sectors, MAX_DATALESS_SECTORS);
        assert_eq!(limits.max_secure_erase_sectors, MAX_DATALESS_SECTORS);
        assert_eq!(limits.max_write_zeroes_sectors, 1000);
        assert_eq!(limits.discard_alignment_bytes, 512);
        assert!(limits.write_cache && limits.fua);
        assert_eq!((limits.io_min_bytes, limits.io_opt_bytes), (4096, 0));
        assert!(!limits.rotational && !limits.write_zeroes_unmaps);
        Ok(())
    }

    #[test]
    fn details() -> Result {
        let said = Details {
            physical_block_size: 65536,
            io_min: 131072,
            io_opt: 3 * 131072,
            max_secure_erase_sectors: 77,
            alignment_offset: 3 * 512,
            rotational: true,
            zeroes_unmap: true,
            ..Details::default()
        };
        let rsp = OpenRsp {
            discard_granularity: 3 * 65536,
            discard_alignment: 65536,
            details: Some(said),
            ..rsp()
        };
        let limits = of_disk(&rsp, CARRIER)?;
        assert_eq!(limits.physical_block_bytes, 65536);
        assert_eq!(limits.alignment_offset_bytes, 3 * 512);
        assert_eq!(limits.io_min_bytes, 131072);
        assert_eq!(limits.io_opt_bytes, 3 * 131072);
        assert_eq!(limits.max_secure_erase_sectors, 77);
        assert_eq!(limits.discard_granularity_bytes, 3 * 65536);
        assert_eq!(limits.discard_alignment_bytes, 65536);
        assert!(limits.rotational && limits.write_zeroes_unmaps);
        let odd = Details {
            physical_block_size: 3,
            io_min: 5000,
            io_opt: 5000,
            alignment_offset: 700,
            ..said
        };
        let limits = of_disk(
            &OpenRsp {
                details: Some(odd),
                ..rsp
            },
            CARRIER,
        )?;
        assert_eq!((limits.io_min_bytes, limits.io_opt_bytes), (512, 4608));
        assert_eq!(limits.alignment_offset_bytes, 0);
        Ok(())
    }

    #[test]
    fn hints_are_bounded() -> Result {
        let said = |bytes| Details {
            physical_block_size: bytes,
            io_min: bytes,
            io_opt: bytes,
            ..Details::default()
        };
        let of = |details| {
            let details = Some(details);
            of_disk(&OpenRsp { details, ..rsp() }, CARRIER)
        };
        let most = of(said(MAX_HINT_BYTES))?;
        assert_eq!(most.physical_block_bytes, MAX_HINT_BYTES);
        assert_eq!(most.io_min_bytes, MAX_HINT_BYTES);
        assert_eq!(most.io_opt_bytes, MAX_HINT_BYTES);
        // Trusting this value would mean a read-ahead of 4 GiB.
        let more = of(said(1 << 31))?;
        assert_eq!(more.physical_block_bytes, 512);
        assert_eq!((more.io_min_bytes, more.io_opt_bytes), (512, 0));
        Ok(())
    }

    #[test]
    fn hostile() -> Result {
        let huge = OpenRsp {
            nsectors: MAX_SECTORS + 1,
            ..rsp()
        };
        assert_eq!(of_disk(&huge, CARRIER), Err(EFBIG));
        let odd = OpenRsp {
            discard_granularity: 12345,
            discard_alignment: 777_777,
            logical_block_size: 4096,
            max_write_zeroes_sectors: 7,
            ..rsp()
        };
        let limits = of_disk(&odd, CARRIER)?;
        assert_eq!(limits.discard_granularity_bytes, 4096);
        assert!(limits.discard_alignment_bytes < 4096);
        assert_eq!(limits.max_write_zeroes_sectors, 0);
        assert_eq!(limits.max_discard_sectors % 8, 0);
        let cached = OpenRsp {
            cache: CachePolicy {
                writeback: false,
                fua: true,
            },
            ..rsp()
        };
        assert!(!of_disk(&cached, CARRIER)?.fua);
        let small = Carrier {
            max_io_bytes: 2048,
            ..CARRIER
        };
        assert_eq!(of_disk(&rsp(), small), Err(EINVAL));
        Ok(())
    }
}
