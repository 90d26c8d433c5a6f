// SPDX-License-Identifier: GPL-2.0

//! The server's share of a request's time (extension; Documentation/protocol.md, "Times").

/// Bits of the mantissa; the exponent is above them.
const MANTISSA: u32 = 11;
const MANTISSA_MASK: u16 = (1 << MANTISSA) - 1;
/// The greatest exponent.
const MAX_EXPONENT: u32 = 31;

/// The longest time that can be sent, about 73 minutes. Anything longer is sent as this.
pub const MAX_SENT_NS: u64 = (MANTISSA_MASK as u64) << MAX_EXPONENT;

/// The time that a request spent on the server, in nanoseconds. Answers carry it rounded down, by up
/// to 1/1024.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ServerTimes {
    /// From its arrival until the service handed it to the disk.
    pub queue_ns: u64,
    /// From then until the disk had executed it.
    pub disk_ns: u64,
}

impl ServerTimes {
    /// The number at the end of an answer.
    pub fn encode(&self) -> u32 {
        u32::from(encode(self.queue_ns)) | u32::from(encode(self.disk_ns)) << 16
    }

    /// Reads the number. Every number is valid, but the server may have made it up.
    pub fn decode(number: u32) -> Self {
        let [a, b, c, d] = number.to_le_bytes();
        Self {
            queue_ns: decode(u16::from_le_bytes([a, b])),
            disk_ns: decode(u16::from_le_bytes([c, d])),
        }
    }
}

/// Eleven significant bits, rounded down, below five bits that say how far they are shifted.
fn encode(ns: u64) -> u16 {
    let ns = ns.min(MAX_SENT_NS);
    let bits = u64::BITS.saturating_sub(ns.leading_zeros());
    let exponent = bits.saturating_sub(MANTISSA);
    // CAST: The exponent is at most 31, and eleven bits are left.
    (exponent as u16) << MANTISSA | (ns >> exponent) as u16
}

fn decode(number: u16) -> u64 {
    u64::from(number & MANTISSA_MASK) << (number >> MANTISSA)
}
