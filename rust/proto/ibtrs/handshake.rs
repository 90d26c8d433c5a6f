// SPDX-License-Identifier: GPL-2.0

//! Private data of the connection manager's messages
//! (Documentation/protocol.md, "Connecting").

use crate::bytes::{message, Reader};
use crate::capsule::Window;
use crate::consts::*;
use crate::errno::Errno;
use crate::imm::{ImmLayout, LayoutError};
#[cfg(doc)]
use crate::slots::MAX_SLOT_BYTES;
use crate::slots::{MAX_SLOT_IO, SLOT_UNIT};

/// Flag of the response: a new key comes with every answer.
const FLAG_NEW_RKEY: u32 = 1 << 1;
/// Bits of the request's byte 44. All but the first one are those of extensions.
const FIRST_CONN: u8 = 1;
const EXT_DOWNTIME: u8 = 2;
const EXT_MESSAGES: u8 = 4;

/// Why private data was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HandshakeError {
    /// Less than 56 bytes.
    Short,
    /// Unknown magic number.
    Magic(u16),
    /// Another major version than this side's.
    Version(u16),
    /// No connection, or more than 4096, in the path.
    ConnectionCount(u16),
    /// The connection's id is not below their number, nor that of a message connection.
    ConnectionId(u16),
    /// An accept that carries an error.
    Status(u16),
    /// Headers smaller than the transport's own, or no room for data.
    Sizes,
    /// Chunk size beyond 32 bits.
    ChunkSize,
    /// Queue depth and chunk size that no immediate can address.
    Layout(LayoutError),
}

impl HandshakeError {
    /// One line for the log.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Short => "private data shorter than 56 bytes",
            Self::Magic(_) => "private data has an unknown magic number",
            Self::Version(_) => "protocol version has a different major number",
            Self::ConnectionCount(_) => "number of connections is not 1 to 4096",
            Self::ConnectionId(_) => "connection id is not below the number of connections",
            Self::Status(_) => "accepted with an error status",
            Self::Sizes => "peer leaves no room for headers or data",
            Self::ChunkSize => "chunk size beyond 32 bits",
            Self::Layout(e) => e.as_str(),
        }
    }

    /// The errno to return or to reject with.
    pub const fn errno(&self) -> Errno {
        Errno::ECONNRESET
    }
}

/// Version of the extensions that both sides of this project speak (Documentation/protocol.md).
pub const EXT_VERSION: u8 = 1;

/// The fields that a client with extensions adds to its request, in reserved bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReqExt {
    /// Path epoch, the same for all connections of this attempt and of no other attempt of the
    /// session: 1..=[`MAX_EPOCH`].
    pub epoch: u32,
    /// Immediates travel in the body of sends, for devices that cannot write with immediate.
    pub send_imm: bool,
    /// The client takes notices.
    pub notices: bool,
    /// The client takes answers that leave the key of a chunk as it was, see
    /// [`Imm::IoRspSameKey`](crate::imm::Imm::IoRspSameKey).
    pub same_key: bool,
    /// The client takes reports of durable writes, see [`Imm::Durable`](crate::imm::Imm::Durable).
    pub durable: bool,
    /// The client takes several answers in a message, see
    /// [`Imm::IoRspMore`](crate::imm::Imm::IoRspMore).
    pub more_answers: bool,
    /// The client takes the answer in the message that invalidates its key, see
    /// [`InvAnswer`](crate::msg::InvAnswer).
    pub inv_answers: bool,
    /// The client takes slots in place of chunks, see [`slots`](crate::slots).
    pub slots: bool,
    /// The client sends [capsules](crate::capsule), if it may.
    pub capsules: bool,
    /// The client takes the time for which the server expects to be away, see
    /// [`Imm::Downtime`](crate::imm::Imm::Downtime).
    pub downtime: bool,
    /// The client opens a message connection as well, if it may. Its id is `cid_num`.
    pub messages: bool,
    /// The failover time of the session in milliseconds, which the server's heartbeats follow; 0: not
    /// told. Any number is possible, see [`Plan::of_server`](crate::failover_time::Plan::of_server).
    pub failover_time_ms: u32,
}

impl ReqExt {
    /// The extensions of a client that asks for none of those that have a bit.
    pub const fn plain(epoch: u32) -> Self {
        Self {
            epoch,
            send_imm: false,
            notices: false,
            same_key: false,
            durable: false,
            more_answers: false,
            inv_answers: false,
            slots: false,
            capsules: false,
            downtime: false,
            messages: false,
            failover_time_ms: 0,
        }
    }

    /// Whether the server sends several answers in a message.
    pub const fn wants_more_answers(&self) -> bool {
        self.same_key && self.more_answers
    }

    /// Whether the server sends the answer in the message that invalidates the client's key. Not
    /// with `send_imm`, where that message has no body.
    pub const fn wants_inv_answers(&self) -> bool {
        self.same_key && self.inv_answers && !self.send_imm
    }

    /// Whether the server may give the path slots. The answer to a fetched write invalidates the
    /// client's key, and leaves that of the slot as it was.
    pub const fn wants_slots(&self) -> bool {
        self.slots && self.wants_inv_answers()
    }

    /// Whether the server may let the client send capsules. The answers to those with data leave the key
    /// of the chunk as it was. Not with `send_imm`, where messages begin with an immediate.
    pub const fn wants_capsules(&self) -> bool {
        self.capsules && self.same_key && !self.send_imm
    }
}

/// The fields that a server with extensions adds to its acceptance, in reserved bytes; only for a
/// client with extensions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RspExt {
    /// The boot id of the server: random, another one after each start.
    pub server_run: [u8; 16],
    /// Names the session within the boot id: when the number differs, the server has lost the
    /// former session.
    pub session_gen: u32,
}

/// Greatest path epoch: 27 bits, as in [`Fence`](crate::imm::Fence).
pub const MAX_EPOCH: u32 = (1 << 27) - 1;
const EXT_SEND_IMM: u8 = 1;
const EXT_NOTICES: u8 = 2;
const EXT_SAME_KEY: u8 = 4;
const EXT_DURABLE: u8 = 8;
const EXT_MORE_ANSWERS: u8 = 16;
const EXT_INV_ANSWERS: u8 = 32;
const EXT_SLOTS: u8 = 64;
const EXT_CAPSULES: u8 = 128;
/// The window is in the highest bits of the response's flags.
const WINDOW_SHIFT: u32 = 24;
/// Bits of the response's byte 22.
const RSP_TIMES: u8 = 1;
const RSP_SLOTS: u8 = 2;
const RSP_MESSAGES: u8 = 4;

/// Connection request, client to server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnReq {
    /// Id of this connection, below `cid_num`, or `cid_num` for a message connection. Connection 0 is the
    /// service connection.
    pub cid: u16,
    /// Number of connections of the path, 1..=4096, without a message connection.
    pub cid_num: u16,
    /// Attempts to connect this path, the first is 1; low 16 bits. For information only.
    pub recon_cnt: u16,
    /// Names the path; kept over reconnects. Raw bytes of a random UUID.
    pub path_uuid: [u8; 16],
    /// Names the session. Raw bytes of a random UUID.
    pub session_uuid: [u8; 16],
    /// The server may create a session for this connection.
    pub first_conn: bool,
    /// Present if the client knows the extensions.
    pub ext: Option<ReqExt>,
}

impl ConnReq {
    /// The 56 bytes of private data.
    pub fn encode(&self) -> [u8; CONN_REQ_LEN] {
        message(|w| {
            w.zeros(2);
            w.u16(MAGIC);
            w.u16(VERSION);
            w.u16(self.cid);
            w.u16(self.cid_num);
            w.u16(self.recon_cnt);
            w.put(&self.path_uuid);
            w.put(&self.session_uuid);
            let has = |bit: u8, is_set: bool| if is_set { bit } else { 0 };
            let downtime = has(EXT_DOWNTIME, self.ext.is_some_and(|ext| ext.downtime));
            let messages = has(EXT_MESSAGES, self.ext.is_some_and(|ext| ext.messages));
            w.u8(has(FIRST_CONN, self.first_conn) | downtime | messages);
            if let Some(ext) = &self.ext {
                w.u8(EXT_VERSION);
                let send_imm = has(EXT_SEND_IMM, ext.send_imm);
                let notices = has(EXT_NOTICES, ext.notices);
                let same_key = has(EXT_SAME_KEY, ext.same_key);
                let durable = has(EXT_DURABLE, ext.durable);
                let more_answers = has(EXT_MORE_ANSWERS, ext.more_answers);
                let inv_answers = has(EXT_INV_ANSWERS, ext.inv_answers);
                let slots = has(EXT_SLOTS, ext.slots);
                let capsules = has(EXT_CAPSULES, ext.capsules);
                let answers = same_key | more_answers | inv_answers;
                w.u8(send_imm | notices | durable | answers | slots | capsules);
                w.zeros(1);
                w.u32(ext.epoch);
                w.u32(ext.failover_time_ms);
            }
        })
    }

    /// Reads and checks private data, which may be followed by padding.
    ///
    /// The first two bytes belong to the connection manager with IB addresses and are ignored.
    /// Malformed extensions, or extensions of an unknown version, count as none.
    ///
    /// # Errors
    ///
    /// The private data is too short, or a field has a forbidden value. The caller rejects the
    /// connection request with the error's errno.
    pub fn decode(bytes: &[u8]) -> Result<Self, HandshakeError> {
        let head = bytes.get(..CONN_REQ_LEN).ok_or(HandshakeError::Short)?;
        Self::fields(head).ok_or(HandshakeError::Short)?
    }

    fn fields(head: &[u8]) -> Option<Result<Self, HandshakeError>> {
        let mut r = Reader::new(head);
        r.skip(2)?;
        let magic = r.u16()?;
        let version = r.u16()?;
        let (cid, cid_num, recon_cnt) = (r.u16()?, r.u16()?, r.u16()?);
        let (path_uuid, session_uuid) = (r.array()?, r.array()?);
        let first = r.u8()?;
        let req = Self {
            cid,
            cid_num,
            recon_cnt,
            path_uuid,
            session_uuid,
            first_conn: first & FIRST_CONN != 0,
            ext: req_ext(first, &mut r)?,
        };
        Some(
            check_version(magic, version)
                .and_then(|()| req.check())
                .map(|()| req),
        )
    }

    fn check(&self) -> Result<(), HandshakeError> {
        if self.cid_num == 0 || self.cid_num > MAX_CONNECTIONS {
            return Err(HandshakeError::ConnectionCount(self.cid_num));
        }
        if self.cid >= self.cid_num && !self.is_for_messages() {
            return Err(HandshakeError::ConnectionId(self.cid));
        }
        Ok(())
    }

    /// Whether this is the message connection of the path.
    pub const fn is_for_messages(&self) -> bool {
        match self.ext {
            Some(ext) => ext.messages && self.cid == self.cid_num,
            None => false,
        }
    }
}

/// The extensions of a request, whose byte 44 is `first`; none if they are malformed or of an unknown
/// version.
fn req_ext(first: u8, r: &mut Reader<'_>) -> Option<Option<ReqExt>> {
    let version = r.u8()?;
    let flags = r.u8()?;
    r.skip(1)?;
    let epoch = r.u32()?;
    let failover_time_ms = r.u32()?;
    let valid = version == EXT_VERSION && (1..=MAX_EPOCH).contains(&epoch);
    Some(valid.then_some(ReqExt {
        epoch,
        send_imm: flags & EXT_SEND_IMM != 0,
        notices: flags & EXT_NOTICES != 0,
        same_key: flags & EXT_SAME_KEY != 0,
        durable: flags & EXT_DURABLE != 0,
        more_answers: flags & EXT_MORE_ANSWERS != 0,
        inv_answers: flags & EXT_INV_ANSWERS != 0,
        slots: flags & EXT_SLOTS != 0,
        capsules: flags & EXT_CAPSULES != 0,
        downtime: first & EXT_DOWNTIME != 0,
        messages: first & EXT_MESSAGES != 0,
        failover_time_ms,
    }))
}

/// Acceptance of a connection, server to client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnRsp {
    /// Chunks of the session, not zero.
    pub queue_depth: u16,
    /// Bytes of a chunk that may carry data.
    pub max_io_size: u32,
    /// Bytes of a chunk that carry headers.
    pub max_hdr_size: u32,
    /// Every answer comes with a new key for its chunk.
    pub new_rkey: bool,
    /// Requests may ask for the server's times, see [`ServerTimes`](crate::msg::ServerTimes); only
    /// with extensions.
    pub times: bool,
    /// The client may open a message connection; only with extensions.
    pub messages: bool,
    /// Bytes of a slot, a multiple of [`SLOT_UNIT`] of at most [`MAX_SLOT_BYTES`], if the path has
    /// slots in place of chunks; only with extensions.
    pub slot_bytes: Option<u32>,
    /// The client may send [capsules](crate::capsule), and has no more requests in flight on a
    /// connection than this; only with extensions.
    pub window: Option<Window>,
    /// Present if the server knows the extensions, and the client does.
    pub ext: Option<RspExt>,
}

impl ConnRsp {
    /// The 56 bytes of private data of an accept.
    pub fn encode(&self) -> [u8; CONN_RSP_LEN] {
        message(|w| {
            w.u16(MAGIC);
            w.u16(VERSION);
            w.u16(0);
            w.u16(self.queue_depth);
            w.u32(self.max_io_size);
            w.u32(self.max_hdr_size);
            let new_rkey = if self.new_rkey { FLAG_NEW_RKEY } else { 0 };
            let window = self.window.filter(|_| self.ext.is_some());
            let window = window.map_or(0, |window| u32::from(window.to_wire()));
            w.u32(new_rkey | window.wrapping_shl(WINDOW_SHIFT));
            if let Some(ext) = &self.ext {
                w.u8(EXT_VERSION);
                w.zeros(1);
                let times = if self.times { RSP_TIMES } else { 0 };
                let slots = self.slot_bytes.map_or(0, |_| RSP_SLOTS);
                let messages = if self.messages { RSP_MESSAGES } else { 0 };
                w.u8(times | slots | messages);
                // Lossless within the limits of the field.
                w.u8((self.slot_bytes.unwrap_or(0) / SLOT_UNIT) as u8);
                w.u32(ext.session_gen);
                w.put(&ext.server_run);
            }
        })
    }

    /// Reads and checks an accept's private data, which may be followed by padding.
    ///
    /// Unknown flags and reserved bytes are ignored.
    ///
    /// # Errors
    ///
    /// When the data is no response, or its numbers do not make a session.
    pub fn decode(bytes: &[u8]) -> Result<Self, HandshakeError> {
        let head = bytes.get(..CONN_RSP_LEN).ok_or(HandshakeError::Short)?;
        Self::fields(head).ok_or(HandshakeError::Short)?
    }

    fn fields(head: &[u8]) -> Option<Result<Self, HandshakeError>> {
        let mut r = Reader::new(head);
        let magic = r.u16()?;
        let version = r.u16()?;
        let status = r.u16()?;
        let (queue_depth, max_io_size, max_hdr_size) = (r.u16()?, r.u32()?, r.u32()?);
        let whole_flags = r.u32()?;
        let new_rkey = whole_flags & FLAG_NEW_RKEY != 0;
        let [.., window] = whole_flags.to_le_bytes();
        let (ext, flags, slot_units) = rsp_ext(&mut r)?;
        let has = |flag: u8| ext.is_some() && flags & flag != 0;
        let rsp = Self {
            queue_depth,
            max_io_size,
            max_hdr_size,
            new_rkey,
            times: has(RSP_TIMES),
            messages: has(RSP_MESSAGES),
            slot_bytes: has(RSP_SLOTS).then_some(u32::from(slot_units).saturating_mul(SLOT_UNIT)),
            window: ext.and_then(|_| Window::from_wire(window)),
            ext,
        };
        Some(match (check_version(magic, version), status) {
            (Err(e), _) => Err(e),
            (Ok(()), 0) => rsp.check().map(|()| rsp),
            (Ok(()), s) => Err(HandshakeError::Status(s)),
        })
    }

    fn check(&self) -> Result<(), HandshakeError> {
        if self.max_hdr_size < MIN_HDR_SIZE || self.max_io_size == 0 {
            return Err(HandshakeError::Sizes);
        }
        let chunk = match self.slot_bytes {
            Some(slot) if slot < self.max_hdr_size => return Err(HandshakeError::Sizes),
            // Without slots, an immediate has no room for much more than that.
            Some(_) if self.max_io_size > MAX_SLOT_IO => return Err(HandshakeError::Sizes),
            Some(slot) => slot,
            None => self
                .max_io_size
                .checked_add(self.max_hdr_size)
                .ok_or(HandshakeError::ChunkSize)?,
        };
        match ImmLayout::new(self.queue_depth, chunk) {
            Ok(_) => Ok(()),
            Err(e) => Err(HandshakeError::Layout(e)),
        }
    }

    /// Size of a chunk, or of the slot in its place, in bytes. [`ConnRsp::decode`] made sure that
    /// it fits.
    #[inline]
    pub const fn chunk_size(&self) -> u32 {
        match self.slot_bytes {
            Some(slot) => slot,
            None => self.max_io_size.saturating_add(self.max_hdr_size),
        }
    }

    /// The layout of request immediates.
    ///
    /// # Errors
    ///
    /// Does not fail for a value from [`ConnRsp::decode`].
    pub const fn layout(&self) -> Result<ImmLayout, LayoutError> {
        ImmLayout::new(self.queue_depth, self.chunk_size())
    }
}

/// The extensions of an acceptance, none if they are of an unknown version; and its bytes 22 and 23.
fn rsp_ext(r: &mut Reader<'_>) -> Option<(Option<RspExt>, u8, u8)> {
    let version = r.u8()?;
    r.skip(1)?;
    let (flags, slot_units) = (r.u8()?, r.u8()?);
    let ext = RspExt {
        session_gen: r.u32()?,
        server_run: r.array()?,
    };
    Some(((version == EXT_VERSION).then_some(ext), flags, slot_units))
}

/// The 56 bytes of private data of a reject with `errno`.
///
/// On the wire the number is negative and has 16 bits. One that does not fit becomes ECONNRESET.
pub fn reject_encode(errno: Errno) -> [u8; CONN_RSP_LEN] {
    let status = match i16::try_from(errno.get()) {
        Ok(n) if n > 0 => n.saturating_neg(),
        _ => -104,
    };
    message(|w| {
        w.u16(MAGIC);
        w.u16(VERSION);
        w.put(&status.to_le_bytes());
    })
}

/// The reason of a reject, as [`Errno::from_peer`]; ECONNRESET when its private data is short or
/// garbled.
pub fn reject_decode(bytes: &[u8]) -> Errno {
    let fields = || -> Option<Errno> {
        let mut r = Reader::new(bytes.get(..CONN_RSP_LEN)?);
        check_version(r.u16()?, r.u16()?).ok()?;
        let status = i16::from_le_bytes(r.array()?);
        (status < 0).then(|| Errno::from_peer(status.unsigned_abs()))
    };
    fields().unwrap_or(Errno::ECONNRESET)
}

fn check_version(magic: u16, version: u16) -> Result<(), HandshakeError> {
    if magic != MAGIC {
        return Err(HandshakeError::Magic(magic));
    }
    let [_, major] = version.to_le_bytes();
    if major != VERSION_MAJOR {
        return Err(HandshakeError::Version(version));
    }
    Ok(())
}
