// SPDX-License-Identifier: GPL-2.0

//! The direction of a transfer between a device and memory.

/// The direction of a transfer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// The device reads the memory.
    ToDevice,
    /// The device writes the memory.
    FromDevice,
    /// Both.
    Bidirectional,
}

impl Direction {
    #[inline]
    pub(crate) fn raw(self) -> kernel::bindings::dma_data_direction {
        match self {
            Self::ToDevice => kernel::bindings::dma_data_direction::DMA_TO_DEVICE,
            Self::FromDevice => kernel::bindings::dma_data_direction::DMA_FROM_DEVICE,
            Self::Bidirectional => kernel::bindings::dma_data_direction::DMA_BIDIRECTIONAL,
        }
    }
}
