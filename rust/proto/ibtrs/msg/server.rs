// SPDX-License-Identifier: GPL-2.0

//! The server's view of a request: header bytes in, checked numbers out.
//!
//! The server copies the header out of the chunk first; nothing here is read twice.

use super::request::FLAG_NEED_INVAL;
use super::{
    Direction, FetchHdr, ReadHdr, SgDesc, WriteHdr, TIMED, TYPE_FETCH, TYPE_READ, TYPE_WRITE,
};
use crate::bytes::Reader;
use crate::capsule;
use crate::consts::{MAX_HDR_SIZE, MAX_REQUEST_HDR_LEN};
use crate::errno::Errno;

/// Why a request was refused.
///
/// Each request can be answered with [`RequestError::errno`], as the chunk is known from the
/// immediate. Without an answer, the client's request would hang.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RequestError {
    /// The header reaches beyond the bytes at hand or beyond the chunk.
    Short,
    /// Neither READ nor WRITE.
    Type(u16),
    /// READ with more than one descriptor, or FETCH with another number than one.
    SgCount(u16),
    /// READ or FETCH whose user header is not at the beginning of its slot, or any in a capsule.
    Offset(u32),
    /// READ or FETCH with data in its capsule.
    Data(u32),
    /// The user header is longer than the space before the request header.
    UserLen(u16),
    /// User header and request header are longer than the space set aside for headers.
    HeaderSize(u16),
    /// READ that names data but no memory to put it.
    NoDesc,
    /// The client's memory is empty or longer than the data.
    DescLen(u32),
    /// The client's memory runs over the end of the address space.
    DescAddr(u64),
    /// The server has no memory for the user header.
    NoMemory,
}

impl RequestError {
    /// One line for the log.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Short => "request header beyond the end of its chunk",
            Self::Type(_) => "request is neither read nor write",
            Self::SgCount(_) => "request with a wrong number of descriptors",
            Self::Offset(_) => "request that does not begin with its slot or capsule",
            Self::Data(_) => "capsule with data that is no write",
            Self::UserLen(_) => "user header longer than the request",
            Self::HeaderSize(_) => "headers longer than the space set aside for them",
            Self::NoDesc => "read request with data but without descriptor",
            Self::DescLen(_) => "request whose descriptor does not match the data",
            Self::DescAddr(_) => "request whose descriptor overflows",
            Self::NoMemory => "no memory for the user header",
        }
    }

    /// The errno to answer with.
    pub const fn errno(&self) -> Errno {
        match self {
            Self::HeaderSize(_) => Errno::EMSGSIZE,
            Self::NoMemory => Errno::ENOMEM,
            _ => Errno::EINVAL,
        }
    }
}

/// Bytes of the user header of a disk's requests, which are most of all.
pub const USUAL_USER_HDR: usize = 32;

/// The first two fields of a header, or the next two, as one number.
const fn first_word(first: u16, second: u16) -> u32 {
    // Lossless: u16 to u32.
    first as u32 | (second as u32) << 16
}

/// A request header as read from a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RequestHdr {
    /// Data goes to the server.
    Write(WriteHdr),
    /// Data comes from the server.
    Read(ReadHdr),
    /// The server fetches the data.
    Fetch(FetchHdr),
}

impl RequestHdr {
    /// Reads the header at the front of `bytes`, which may be longer.
    ///
    /// Unknown flags are ignored; NEED_INVAL counts only with a descriptor. `has_times` says
    /// whether requests of the session may ask for times.
    ///
    /// # Errors
    ///
    /// When the header is short, of another type, or has a wrong number of descriptors.
    #[inline]
    pub fn parse(bytes: &[u8], has_times: bool) -> Result<Self, RequestError> {
        Self::fields(bytes, has_times).ok_or(RequestError::Short)?
    }

    #[inline]
    fn fields(bytes: &[u8], has_times: bool) -> Option<Result<Self, RequestError>> {
        let mut r = Reader::new(bytes);
        let kind = r.u16()?;
        let timed = has_times && kind & TIMED != 0;
        let plain = if timed { kind & !TIMED } else { kind };
        Some(match plain {
            TYPE_WRITE => Ok(Self::Write(WriteHdr {
                usr_len: r.u16()?,
                timed,
            })),
            TYPE_READ => {
                let usr_len = r.u16()?;
                let flags = r.u16()?;
                let desc = match r.u16()? {
                    0 => None,
                    1 => Some(SgDesc::read(&mut r)?),
                    n => return Some(Err(RequestError::SgCount(n))),
                };
                Ok(Self::Read(ReadHdr {
                    usr_len,
                    need_inval: flags & FLAG_NEED_INVAL != 0 && desc.is_some(),
                    timed,
                    desc,
                }))
            }
            TYPE_FETCH => {
                let usr_len = r.u16()?;
                let flags = r.u16()?;
                match r.u16()? {
                    1 => {}
                    n => return Some(Err(RequestError::SgCount(n))),
                }
                Ok(Self::Fetch(FetchHdr {
                    usr_len,
                    need_inval: flags & FLAG_NEED_INVAL != 0,
                    timed,
                    desc: SgDesc::read(&mut r)?,
                }))
            }
            _ => Err(RequestError::Type(kind)),
        })
    }

    /// Bytes of the user header right before this header.
    #[inline]
    pub const fn usr_len(&self) -> u16 {
        match self {
            Self::Write(h) => h.usr_len,
            Self::Read(h) => h.usr_len,
            Self::Fetch(h) => h.usr_len,
        }
    }

    /// Length of the header in bytes: 4, 8 or 24.
    #[inline]
    pub const fn wire_len(&self) -> usize {
        match self {
            Self::Write(h) => h.wire_len(),
            Self::Read(h) => h.wire_len(),
            Self::Fetch(h) => h.wire_len(),
        }
    }

    /// Whether the answer is to end with times.
    #[inline]
    pub const fn timed(&self) -> bool {
        match self {
            Self::Write(h) => h.timed,
            Self::Read(h) => h.timed,
            Self::Fetch(h) => h.timed,
        }
    }

    /// Which way the data flows.
    #[inline]
    pub const fn direction(&self) -> Direction {
        match self {
            Self::Write(_) | Self::Fetch(_) => Direction::Write,
            Self::Read(_) => Direction::Read,
        }
    }
}

/// The place in which a request has arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bounds {
    /// A chunk of this many bytes.
    Chunk(u32),
    /// A slot of `bytes`, in a session whose requests have up to `max_io` bytes of data.
    Slot {
        /// Bytes of the slot.
        bytes: u32,
        /// Most bytes of data that are not in a slot.
        max_io: u32,
    },
    /// A capsule of a session whose requests have up to `max_io` bytes of data.
    Capsule {
        /// Bytes of headers that have arrived, at most [`capsule::HEADERS`].
        headers: u32,
        /// Bytes of data that have arrived, at most [`capsule::MAX_DATA`].
        data: u32,
        /// Most bytes of data that are not in a capsule.
        max_io: u32,
        /// The session has slots.
        has_slots: bool,
    },
}

impl Bounds {
    /// Bytes of the chunk or slot, or those of the headers in a capsule.
    #[inline]
    pub const fn bytes(&self) -> u32 {
        match self {
            Self::Chunk(bytes) | Self::Slot { bytes, .. } => *bytes,
            Self::Capsule { headers, .. } => *headers,
        }
    }

    /// Most bytes of data of a request of the session that are not in its capsule.
    #[inline]
    const fn max_io(&self) -> u32 {
        match self {
            Self::Chunk(bytes) => bytes.saturating_sub(MAX_HDR_SIZE),
            Self::Slot { max_io, .. } | Self::Capsule { max_io, .. } => *max_io,
        }
    }

    /// The place of a request of the same session whose capsule has `len` bytes of headers and `data`.
    #[inline]
    pub const fn capsule(&self, len: u32, data: u32) -> Self {
        let has_slots = match self {
            Self::Chunk(_) => false,
            Self::Slot { .. } => true,
            Self::Capsule { has_slots, .. } => *has_slots,
        };
        let headers = if len > capsule::HEADERS {
            capsule::HEADERS
        } else {
            len
        };
        Self::Capsule {
            headers,
            data,
            max_io: self.max_io(),
            has_slots,
        }
    }
}

/// A request whose numbers agree with each other and with the chunk or slot.
///
/// # Invariants
///
/// - `usr_at + usr_len` plus the header is at most the size of the chunk or slot, or of what has
///   arrived of a capsule's headers;
/// - the data of a WRITE ends at `usr_at`, but for that of a capsule, which has all that has arrived;
///   with a chunk, that of a READ ends there as well;
/// - a descriptor is that of a READ or FETCH, and its length is 1..=`data_len`, or exactly that in
///   a slot or a capsule;
/// - a READ without descriptor has `data_len` 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ServerRequest {
    /// Which way the data flows.
    pub direction: Direction,
    /// Bytes of data.
    pub data_len: u32,
    /// Where the user header begins in the chunk or slot.
    pub usr_at: u32,
    /// Bytes of the user header.
    pub usr_len: u16,
    /// Client memory that takes the answer's data, or that has the data to fetch.
    pub desc: Option<SgDesc>,
    /// Invalidate the descriptor's key with the answer.
    pub need_inval: bool,
    /// The answer ends with times.
    pub timed: bool,
}

impl ServerRequest {
    /// Checks header `hdr`, found at byte `offset` of a chunk or slot.
    ///
    /// # Errors
    ///
    /// When lengths disagree. In particular a descriptor longer than the data is refused: the
    /// answer would send memory that was never written. FETCH needs a slot.
    #[inline]
    pub fn parse(hdr: &RequestHdr, offset: u32, bounds: Bounds) -> Result<Self, RequestError> {
        let usr_len = hdr.usr_len();
        let hdr_len = u32::try_from(hdr.wire_len()).map_err(|_| RequestError::Short)?;
        match offset.checked_add(hdr_len) {
            Some(end) if end <= bounds.bytes() => {}
            _ => return Err(RequestError::Short),
        }
        let usr_at = offset
            .checked_sub(u32::from(usr_len))
            .ok_or(RequestError::UserLen(usr_len))?;
        if u32::from(usr_len).saturating_add(hdr_len) > MAX_HDR_SIZE {
            return Err(RequestError::HeaderSize(usr_len));
        }
        let (desc, need_inval) = match (hdr, bounds) {
            (RequestHdr::Write(_), _) => (None, false),
            (RequestHdr::Read(h), _) => (h.desc, h.need_inval),
            (
                RequestHdr::Fetch(h),
                Bounds::Slot { .. }
                | Bounds::Capsule {
                    has_slots: true, ..
                },
            ) => (Some(h.desc), h.need_inval),
            (RequestHdr::Fetch(_), _) => return Err(RequestError::Type(TYPE_FETCH)),
        };
        let data_len = match (hdr, bounds) {
            (_, Bounds::Capsule { .. }) if usr_at > 0 => return Err(RequestError::Offset(usr_at)),
            (RequestHdr::Write(_), Bounds::Capsule { data, .. }) => data,
            (_, Bounds::Capsule { data, .. }) if data > 0 => return Err(RequestError::Data(data)),
            (RequestHdr::Write(_), _) | (_, Bounds::Chunk(_)) => usr_at,
            (_, Bounds::Slot { .. }) if usr_at > 0 => return Err(RequestError::Offset(usr_at)),
            (_, Bounds::Slot { max_io, .. } | Bounds::Capsule { max_io, .. }) => {
                desc.map_or(0, |desc| desc.len).min(max_io)
            }
        };
        let direction = hdr.direction();
        match (direction, desc) {
            (Direction::Read, None) if data_len > 0 => return Err(RequestError::NoDesc),
            (_, Some(d)) if d.len == 0 || d.len > data_len => {
                return Err(RequestError::DescLen(d.len))
            }
            (_, Some(d)) if !d.fits() => return Err(RequestError::DescAddr(d.addr)),
            _ => {}
        }
        // INVARIANT: checked above.
        Ok(Self {
            direction,
            data_len,
            usr_at,
            usr_len,
            desc,
            need_inval: need_inval && desc.is_some(),
            timed: hdr.timed(),
        })
    }

    /// Reads and checks the headers of a usual capsule: a read or a write of a disk, without a key to
    /// invalidate or times to tell. Its header is behind [`USUAL_USER_HDR`] bytes of user header, so
    /// all of its fields have constant places, and two numbers tell that it is as expected.
    ///
    /// `bytes` are the headers that have arrived, of a session whose requests arrive within `bounds`, and
    /// `data` is the number of bytes behind them. `None` means that [`RequestHdr::parse`] and
    /// [`Self::parse`], which make the same of a usual capsule, have to decide.
    #[inline]
    pub fn usual(bytes: &[u8], offset: u32, data: u32, bounds: Bounds) -> Option<Self> {
        const HEADERS: usize = USUAL_USER_HDR.saturating_add(MAX_REQUEST_HDR_LEN);
        // Lossless: a small constant.
        const USR_LEN: u16 = USUAL_USER_HDR as u16;
        const WRITE: u32 = first_word(TYPE_WRITE, USR_LEN);
        const READ: u32 = first_word(TYPE_READ, USR_LEN);
        // No flags, and one descriptor.
        const ONE_DESC: u32 = first_word(0, 1);

        let bytes: &[u8; HEADERS] = bytes.first_chunk()?;
        if offset != u32::from(USR_LEN) {
            return None;
        }
        let (_, hdr) = bytes.split_first_chunk::<USUAL_USER_HDR>()?;
        let mut r = Reader::new(hdr);
        let (direction, data_len, desc) = match (r.u32()?, r.u32()?) {
            (WRITE, _) => (Direction::Write, data, None),
            (READ, ONE_DESC) if data == 0 => {
                let desc = SgDesc::read(&mut r)?;
                if desc.len == 0 || desc.len > bounds.max_io() || !desc.fits() {
                    return None;
                }
                (Direction::Read, desc.len, Some(desc))
            }
            _ => return None,
        };
        // INVARIANT: The user header begins the capsule, which has arrived as far as that of a read goes.
        // All data of a write is there, and the descriptor of a read was just checked.
        Some(Self {
            direction,
            data_len,
            usr_at: 0,
            usr_len: USR_LEN,
            desc,
            need_inval: false,
            timed: false,
        })
    }

    /// Bytes that a successful answer sends to the client's memory.
    #[inline]
    pub const fn return_len(&self) -> u32 {
        match self.sink() {
            Some(d) => d.len,
            None => 0,
        }
    }

    /// Client memory that takes the data of the answer.
    #[inline]
    pub const fn sink(&self) -> Option<SgDesc> {
        match self.direction {
            Direction::Read => self.desc,
            Direction::Write => None,
        }
    }

    /// Client memory from which the server fetches the data.
    #[inline]
    pub const fn source(&self) -> Option<SgDesc> {
        match self.direction {
            Direction::Write => self.desc,
            Direction::Read => None,
        }
    }
}
