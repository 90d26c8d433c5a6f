// SPDX-License-Identifier: GPL-2.0

//! Messages during the setup of a path: completions copy them, work items handle them.

/// A copy of a message, kept from its arrival until a work item handles it. `N` is the size of the
/// receive buffers, so no message is longer.
#[derive(Clone, Copy)]
pub struct Message<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Message<N> {
    /// Copies a message, up to `N` bytes of it.
    pub fn new(message: &[u8]) -> Self {
        let mut bytes = [0; N];
        bytes
            .iter_mut()
            .zip(message)
            .for_each(|(to, from)| *to = *from);
        Self {
            bytes,
            len: message.len().min(N),
        }
    }

    /// Returns the bytes of the message.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}
