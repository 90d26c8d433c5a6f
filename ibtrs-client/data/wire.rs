// SPDX-License-Identifier: GPL-2.0

//! The negotiated parameters of a path.

use ibtrs_core::convert;
use ibtrs_proto::{
    capsule::{
        self,
        Window, //
    },
    consts::MAX_REQUEST_HDR_LEN,
    handshake::{
        ConnRsp,
        ReqExt, //
    },
    imm::ImmLayout,
    imm_check::ImmTerms,
    limits::client_depth, //
};
use kernel::prelude::*;
use rdma::device::Device;

/// Maximum number of scatter elements of one message.
pub(crate) const MAX_SGES: u32 = 33;

/// Receives of a connection with a window for the server's own [`Nop`]s. It sends one when the previous
/// ones were acknowledged, but they may not have been handled yet: hundreds of milliseconds may pass
/// until a polled connection is polled.
///
/// [`Nop`]: ibtrs_proto::imm::Imm::Nop
const OWN_NOPS: u32 = 128;

/// The length of the user headers of disks.
pub(super) const DISK_USER_HDR: usize = 32;
/// The length of the headers of a small request of a disk.
// CAST: A small constant.
pub(super) const SMALL_HEADERS: u32 = (DISK_USER_HDR + MAX_REQUEST_HDR_LEN) as u32;
const _: () = assert!(SMALL_HEADERS <= capsule::HEADERS);

/// The sizes and features that both sides agreed on when they connected.
#[derive(Clone, Copy)]
pub(crate) struct Wire {
    pub(crate) rsp: ConnRsp,
    /// The immediates that the server may send.
    pub(crate) imms: ImmTerms,
    pub(crate) layout: ImmLayout,
    /// Number of chunks in use, which are the first ones of the server's chunks.
    pub(crate) depth: u16,
    /// Maximum bytes of data in one request.
    pub(crate) max_io_bytes: u32,
    /// Maximum number of pages of a registration.
    pub(crate) mr_pages: u32,
    /// Maximum number of scatter elements of one message, including the header's.
    pub(crate) max_sges: u32,
    /// Immediates travel in messages: the device has none, and the server accepts messages instead.
    pub(crate) imm_in_messages: bool,
    /// The server may answer in the message that invalidates a key.
    pub(crate) inv_answers: bool,
    /// Requests may be capsules.
    pub(crate) capsules: bool,
    /// Requests may be capsules, and the server accepts [the headers](SMALL_HEADERS) of small ones.
    pub(super) small_capsules: bool,
    /// The path has a message connection.
    pub(crate) messages: bool,
    /// Maximum number of requests in flight on a connection, from their submission to their end.
    pub(crate) window: i32,
}

/// Returns whether this side supports slots instead of chunks, for which the server must be able to
/// read its memory.
pub(crate) fn takes_slots(dev: &Device) -> bool {
    dev.has_immediates()
        && dev.max_reads_by_peer() > 0
        && (dev.reads_survive_loss() || crate::param::slots_over_rxe.get())
}

/// Returns the maximum number of requests of a connection that fit the queues of the device: four
/// entries of the send queue each, five if immediates travel in messages, and two receives. See `sends`
/// and `answers` in [`crate::path::attempt::connect`]; a queue pair takes an entry of each queue for
/// itself.
fn queue_room(dev: &Device) -> u32 {
    let sends = match dev.has_immediates() {
        true => 4,
        false => 5,
    };
    let of_sends = dev.max_qp_wr().saturating_sub(3) / sends;
    let of_receives = dev.max_qp_wr().saturating_sub(OWN_NOPS + 2) / 2;
    let of_completions = dev.max_cqe().saturating_sub(OWN_NOPS + 5) / (sends + 2);
    of_sends.min(of_receives).min(of_completions).max(1)
}

/// Returns the window that the client chooses if the server sets no limit, so that the queues of the
/// `connections` can be shorter than that of the path. `None` if there is a single I/O connection, if
/// the window exceeds `room`, or if all windows together would be less than the queue depth.
fn shared_window(room: u32, depth: u16, connections: u16) -> Option<u32> {
    let window = Window::of_path(depth, connections).requests();
    let all = window.saturating_mul(connections.into());
    (connections > 1 && window <= room && all >= depth.into()).then_some(window)
}

/// Returns the window that the client chooses if the server sets no limit; the queues of a connection have
/// room for `room` requests. If several connections are `sharing` the requests of the path, they get shorter
/// queues if possible. In any other case there is a window only if the queues are too short for all requests.
fn own_window(room: u32, depth: u16, sharing: Option<u16>) -> Option<u32> {
    sharing
        .and_then(|connections| shared_window(room, depth, connections))
        .or_else(|| (room < depth.into()).then_some(room))
}

impl Wire {
    /// Derives the parameters from the server's answer to a connection request with the extensions
    /// `asked`. If the answer does not limit the requests of a connection, the client chooses windows
    /// for the connections that are `sharing` the requests of the path.
    ///
    /// # Errors
    ///
    /// `EPROTO`: the server offers a feature that the client has not requested; others: its sizes
    /// are invalid.
    pub(crate) fn new(
        rsp: ConnRsp,
        asked: ReqExt,
        dev: &Device,
        sharing: Option<u16>,
    ) -> Result<Self> {
        if rsp.slot_bytes.is_some() && !takes_slots(dev) {
            // The client has not requested slots.
            return Err(EPROTO);
        }
        if rsp.window.is_some() && !dev.has_immediates() {
            // The client has not requested capsules.
            return Err(EPROTO);
        }
        let layout = rsp
            .layout()
            .map_err(|error| convert::error(error.errno()))?;
        let page = dev.region_page_bytes();
        // Data that begins inside a page touches one page more.
        let wanted = rsp.max_io_size.div_ceil(page).saturating_add(1);
        let mr_pages = wanted.min(dev.max_fast_reg_pages());
        let mapped = u32::try_from(dev.max_mapping_bytes()).unwrap_or(u32::MAX);
        let max_io_bytes = mr_pages.saturating_sub(1).saturating_mul(page).min(mapped);
        if max_io_bytes == 0 {
            return Err(EINVAL);
        }
        let depth = client_depth(rsp.queue_depth);
        let room = queue_room(dev);
        let window = match rsp.window {
            Some(window) => Some(window.requests().min(room)),
            None => own_window(room, depth, sharing),
        };
        Ok(Self {
            rsp,
            imms: ImmTerms::new(rsp.ext.map(|_| asked), rsp.slot_bytes.is_some()),
            layout,
            depth,
            max_io_bytes: max_io_bytes.min(rsp.max_io_size),
            mr_pages,
            max_sges: dev.max_send_sge().min(MAX_SGES),
            imm_in_messages: !dev.has_immediates() && rsp.ext.is_some(),
            inv_answers: dev.has_immediates() && rsp.ext.is_some(),
            capsules: rsp.window.is_some(),
            small_capsules: rsp.window.is_some() && rsp.max_hdr_size >= SMALL_HEADERS,
            messages: rsp.messages && asked.messages,
            // CAST: A window has at most some thousand requests.
            window: window.map_or(i32::MAX, |window| window as i32),
        })
    }

    /// Returns the maximum number of requests in flight on a connection.
    pub(crate) fn requests_of_connection(&self) -> u32 {
        u32::from(self.depth).min(self.window.unsigned_abs())
    }

    /// As [`Self::requests_of_connection`], if the connections have a window, so that they share the
    /// requests.
    pub(crate) fn window(&self) -> Option<u32> {
        (self.window < i32::MAX).then(|| self.requests_of_connection())
    }

    /// Returns the number of receives of an I/O connection for the server's own [`Nop`]s. Only
    /// servers with extensions send them; without a window, the many receives suffice.
    ///
    /// [`Nop`]: ibtrs_proto::imm::Imm::Nop
    pub(crate) fn own_nops(&self) -> u32 {
        match (self.rsp.ext, self.window()) {
            (Some(_), Some(_)) => OWN_NOPS,
            _ => 0,
        }
    }
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(ibtrs_client_wire)]
mod tests {
    use super::*;

    /// Room for any number of requests.
    const ROOM: u32 = 1 << 16;

    #[test]
    fn connections_that_share_have_a_window() {
        let each = Window::of_path(512, 4).requests();
        assert_eq!(own_window(ROOM, 512, Some(4)), Some(each));
        assert_eq!(own_window(each, 512, Some(4)), Some(each));
        // More than a window can express.
        assert_eq!(own_window(ROOM, u16::MAX, Some(2)), None);
    }

    #[test]
    fn others_have_one_only_if_their_queues_are_short() {
        for sharing in [None, Some(1)] {
            assert_eq!(own_window(ROOM, 512, sharing), None);
            assert_eq!(own_window(512, 512, sharing), None);
            assert_eq!(own_window(511, 512, sharing), Some(511));
        }
        // The queues are too short for a shared window.
        assert_eq!(own_window(100, 512, Some(4)), Some(100));
    }
}
