// SPDX-License-Identifier: GPL-2.0

//! Ids of incoming connection requests.

use core::{
    ops::Deref,
    ptr::NonNull, //
};

use super::{
    Addrs,
    CmHandler,
    CmId,
    HandlerSlot, //
};
use crate::cm::ConnParam;
use ibtrs_bindings as bindings;
use kernel::{
    error::to_result,
    prelude::*,
    sync::Arc, //
};

/// The port of a peer in an InfiniBand or Omni-Path subnet.
#[derive(Clone, Copy)]
pub struct PeerPort {
    /// Its local identifier, or that of the router before it.
    pub lid: u32,
    /// Its GID, if answers have a global route header.
    pub gid: Option<[u8; 16]>,
}

/// Properties of the peer in its connection request, except its addresses.
#[derive(Clone, Copy)]
struct Peer {
    /// See [`IncomingId::peer_roce_gid`].
    roce_gid: Option<[u8; 16]>,
    /// See [`IncomingId::peer_port`].
    port: Option<PeerPort>,
    /// See [`IncomingId::reads_allowed`].
    reads_allowed: u8,
    /// See [`IncomingId::reads_wanted`].
    reads_wanted: u8,
}

/// A connection request that a listener's handler gets. It has no queue pair, and the handler may
/// return it.
///
/// Dropping it rejects the request, and waits for a running handler: it must not be dropped by the
/// listener's handler.
///
/// # Invariants
///
/// The id was made by [`CmId::of_request`], nobody else has it, and the request was neither
/// accepted nor rejected.
pub struct ConnRequest {
    id: CmId,
    peer: Peer,
}

impl ConnRequest {
    /// Takes ownership of the id of a connection request. The peer allows `reads_allowed` concurrent
    /// RDMA reads of its memory, and wants to have `reads_wanted` reads of this side's memory in
    /// progress.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; the connection manager then still owns the id.
    ///
    /// # Safety
    ///
    /// As for [`CmId::of_request`], with [`ConnRequest::release`].
    pub(super) unsafe fn new(
        id: NonNull<bindings::rdma_cm_id>,
        reads_allowed: u8,
        reads_wanted: u8,
    ) -> Result<Self> {
        // SAFETY: By this function's contract the connection manager has filled in the id. It
        // writes to the route only during calls for the id, of which there is none yet.
        let peer = unsafe {
            let route = &(*id.as_ptr()).route;
            Peer {
                roce_gid: roce_gid(route),
                port: peer_port(route),
                reads_allowed,
                reads_wanted,
            }
        };
        // SAFETY: By this function's contract.
        let id = unsafe { CmId::of_request(id) }?;
        // INVARIANT: The request has just arrived, so it is unanswered.
        Ok(Self { id, peer })
    }

    /// Returns the id to the connection manager, which destroys it.
    ///
    /// # Safety
    ///
    /// The caller must be the handler's call that got the request, and must return an error now.
    pub(super) unsafe fn release(self) {
        // SAFETY: By this function's contract and the type invariant.
        unsafe { self.id.release() };
    }

    /// Makes the id one that can have a queue pair.
    ///
    /// # Context
    ///
    /// May sleep; not from the listener's handler, which must not drop the id.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; the request is rejected.
    pub fn into_id(self) -> Result<IncomingId> {
        // INVARIANT: The request was not answered, by the type invariant.
        Ok(IncomingId {
            id: Arc::new(self.id, GFP_KERNEL)?,
            peer: self.peer,
        })
    }

    /// Returns the addresses of the connection.
    pub fn addrs(&self) -> Addrs {
        // SAFETY: The connection manager has written the addresses of a request before its event,
        // and does not write them again.
        unsafe { self.id.addrs() }
    }
}

impl Deref for ConnRequest {
    type Target = CmId;

    fn deref(&self) -> &CmId {
        &self.id
    }
}

/// A request that was not accepted.
pub struct NotAccepted {
    /// The reason.
    pub error: Error,
    /// The id, if the request is still to be rejected.
    pub unanswered: Option<IncomingId>,
}

/// The id of an incoming connection request, which is accepted or rejected once. Dropping the last
/// reference to its [`CmId`] rejects the request.
///
/// # Context
///
/// All functions may sleep.
///
/// # Invariants
///
/// The request was neither accepted nor rejected.
pub struct IncomingId {
    id: Arc<CmId>,
    peer: Peer,
}

impl IncomingId {
    /// Returns the id, for a queue pair.
    pub fn shared(&self) -> Arc<CmId> {
        self.id.clone()
    }

    /// Returns whether the connection ended before a handler was set.
    pub fn has_ended(&self) -> bool {
        matches!(
            *self.id.context.handler.lock(),
            HandlerSlot::Waiting { ended: true }
        )
    }

    /// Sets the handler of the id. Earlier events are lost, except for the end of the connection.
    ///
    /// # Errors
    ///
    /// `ECONNRESET` when the connection has already ended.
    pub fn set_handler(&self, handler: Arc<dyn CmHandler>) -> Result {
        let mut slot = self.id.context.handler.lock();
        if let HandlerSlot::Waiting { ended: true } = *slot {
            return Err(ECONNRESET);
        }
        *slot = HandlerSlot::Set(handler);
        Ok(())
    }

    /// Returns the addresses of the connection.
    pub fn addrs(&self) -> Addrs {
        // SAFETY: As in `ConnRequest::addrs`.
        unsafe { self.id.addrs() }
    }

    /// Accepts the connection request.
    ///
    /// # Context
    ///
    /// May sleep; not from the id's handler, whose lock it takes.
    ///
    /// # Errors
    ///
    /// - `EINVAL` for private data of more than 255 bytes, and `ECONNRESET` if the queue pair of the
    ///   id was closed: with the id, as the request is unanswered.
    /// - Errors of `rdma_accept`, which has then rejected the request.
    pub fn accept(self, param: ConnParam<'_>) -> Result<(), NotAccepted> {
        let mut is_answered = false;
        let accepted = param.raw().and_then(|mut raw| {
            self.begin(|| {
                is_answered = true;
                // SAFETY: The id is live by the type invariant of `CmId`. The parameters and their
                // private data are valid during the call, which is made with the handler lock, as
                // it requires. The request was not answered, by the type invariant, and is not
                // answered again: this value is dropped.
                unsafe { bindings::rdma_accept(self.as_raw(), &mut raw) }
            })
        });
        accepted.map_err(|error| NotAccepted {
            error,
            unanswered: (!is_answered).then_some(self),
        })
    }

    /// Rejects the connection request, with private data for the peer.
    ///
    /// # Context
    ///
    /// As for [`IncomingId::accept`].
    ///
    /// # Errors
    ///
    /// Errors of `rdma_reject`; `EINVAL` for private data of more than 255 bytes. Without an
    /// answer, the peer's request times out, unless destroying the id rejects it.
    pub fn reject(self, private_data: &[u8]) -> Result {
        let len = u8::try_from(private_data.len())?;
        self.under_lock(|_| {
            // SAFETY: The id is live by the type invariant of `CmId`, and the data is valid during
            // the call. The request is answered once, as in `accept`.
            to_result(unsafe {
                bindings::rdma_reject(
                    self.as_raw(),
                    private_data.as_ptr().cast(),
                    len,
                    bindings::ib_cm_rej_reason_IB_CM_REJ_CONSUMER_DEFINED as u8,
                )
            })
        })
    }

    /// Returns the source GID of a request over RoCE, in network byte order; `None` for another
    /// transport.
    ///
    /// [`CmId::peer_addr`] is the address in the peer's message, which the peer can choose. Answers
    /// go to the GID, so a peer that cannot receive there cannot complete the connection.
    pub fn peer_roce_gid(&self) -> Option<[u8; 16]> {
        self.peer.roce_gid
    }

    /// Returns the source port of a request over InfiniBand or Omni-Path; `None` for another
    /// transport.
    ///
    /// Answers go there, so a peer at another port cannot complete the connection. A GID alone does
    /// not show the port: it is in the peer's message, like [`CmId::peer_addr`].
    pub fn peer_port(&self) -> Option<PeerPort> {
        self.peer.port
    }

    /// Returns the number of reads of its memory that the peer allows at a time, according to its
    /// request.
    pub fn reads_allowed(&self) -> u8 {
        self.peer.reads_allowed
    }

    /// Returns the number of reads of this side's memory that the peer wants to have in progress at a
    /// time, according to its request.
    pub fn reads_wanted(&self) -> u8 {
        self.peer.reads_wanted
    }
}

impl Deref for IncomingId {
    type Target = CmId;

    fn deref(&self) -> &CmId {
        &self.id
    }
}

/// Returns the GID of the peer in a route over RoCE.
///
/// # Safety
///
/// The path record of `route` must be null or valid, and nobody may write to it during the call.
unsafe fn roce_gid(route: &bindings::rdma_route) -> Option<[u8; 16]> {
    // SAFETY: By this function's contract.
    let record = unsafe { route.path_rec.as_ref() }?;
    let is_roce = matches!(
        record.rec_type,
        bindings::sa_path_rec_type_SA_PATH_REC_TYPE_ROCE_V1
            | bindings::sa_path_rec_type_SA_PATH_REC_TYPE_ROCE_V2
    );
    // SAFETY: All variants of the union have 16 bytes, and any bytes are a valid `raw`.
    is_roce.then(|| unsafe { *record.dgid.raw })
}

/// Returns the port of the peer in a route over InfiniBand or Omni-Path.
///
/// # Safety
///
/// As for [`roce_gid`].
unsafe fn peer_port(route: &bindings::rdma_route) -> Option<PeerPort> {
    // SAFETY: By this function's contract.
    let record = unsafe { route.path_rec.as_ref() }?;
    let lid = match record.rec_type {
        // SAFETY: The union has this variant for that type, and any bits are a valid number.
        bindings::sa_path_rec_type_SA_PATH_REC_TYPE_IB => unsafe {
            u32::from(u16::from_be(record.__bindgen_anon_1.ib.dlid))
        },
        // SAFETY: As above.
        bindings::sa_path_rec_type_SA_PATH_REC_TYPE_OPA => unsafe {
            u32::from_be(record.__bindgen_anon_1.opa.dlid)
        },
        _ => return None,
    };
    // The connection manager puts a global route header into its answers if this is set.
    let is_global = record.hop_limit > 0;
    Some(PeerPort {
        lid,
        // SAFETY: All variants of the union have 16 bytes, and any bytes are a valid `raw`.
        gid: is_global.then(|| unsafe { *record.dgid.raw }),
    })
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(rdma_cm_incoming)]
mod tests {
    use super::super::{
        handler,
        Context, //
    };
    use super::*;
    use crate::cm::{
        testing::{
            nobody,
            NO_DATA, //
        },
        CmEvent,
        PortSpace, //
    };
    use core::{
        mem::ManuallyDrop,
        ptr, //
    };
    use kernel::{
        new_mutex,
        sync::Mutex, //
    };
    use kx::net::Net;

    fn id() -> Result<CmId> {
        CmId::new(Net::init(), PortSpace::Tcp, nobody()?)
    }

    /// Returns an id without a connection, for which the connection manager refuses any answer.
    fn incoming() -> Result<IncomingId> {
        Ok(IncomingId {
            id: Arc::new(id()?, GFP_KERNEL)?,
            peer: Peer {
                roce_gid: None,
                port: None,
                reads_allowed: 0,
                reads_wanted: 0,
            },
        })
    }

    #[test]
    fn a_closed_id_is_not_accepted() -> Result {
        let too_much = ConnParam {
            private_data: &[0; 256],
            ..NO_DATA
        };
        let Err(NotAccepted { error, unanswered }) = incoming()?.accept(too_much) else {
            return Err(EBADMSG);
        };
        assert!(error == EINVAL && unanswered.is_some());
        let id = incoming()?;
        id.close();
        let Err(NotAccepted { error, unanswered }) = id.accept(NO_DATA) else {
            return Err(EBADMSG);
        };
        assert!(error == ECONNRESET && unanswered.is_some_and(|id| id.reject(&[]).is_err()));
        let refused = incoming()?.accept(NO_DATA).err();
        assert!(refused.is_some_and(|refused| refused.unanswered.is_none()));
        assert!(incoming()?.reject(&[]).is_err());
        assert_eq!(incoming()?.reject(&[0; 256]), Err(EINVAL));
        Ok(())
    }

    #[test]
    fn only_subnets_have_a_port_of_the_peer() {
        // SAFETY: C structs of numbers and pointers: zeroes are valid.
        let (mut route, mut record): (bindings::rdma_route, bindings::sa_path_rec) =
            unsafe { core::mem::zeroed() };
        // SAFETY: There is no path record, as with iWARP.
        assert!(unsafe { peer_port(&route) }.is_none());
        record.dgid.raw = ManuallyDrop::new([7; 16]);
        let (ib, opa) = (
            bindings::sa_path_rec_type_SA_PATH_REC_TYPE_IB,
            bindings::sa_path_rec_type_SA_PATH_REC_TYPE_OPA,
        );
        for (rec_type, hop_limit, port) in [
            (ib, 0, Some((0x1234, None))),
            (ib, 255, Some((0x1234, Some([7; 16])))),
            (opa, 0, Some((0x12345, None))),
            (opa, 1, Some((0x12345, Some([7; 16])))),
            (bindings::sa_path_rec_type_SA_PATH_REC_TYPE_ROCE_V1, 1, None),
            (bindings::sa_path_rec_type_SA_PATH_REC_TYPE_ROCE_V2, 1, None),
        ] {
            record.rec_type = rec_type;
            record.hop_limit = hop_limit;
            // SAFETY: Each variant of the union consists of numbers, for which any bits are valid.
            unsafe {
                match rec_type == opa {
                    true => (*record.__bindgen_anon_1.opa).dlid = 0x12345_u32.to_be(),
                    false => (*record.__bindgen_anon_1.ib).dlid = 0x1234_u16.to_be(),
                }
            }
            route.path_rec = &raw mut record;
            // SAFETY: The record lives, and nobody else has it.
            let found = unsafe { peer_port(&route) };
            assert_eq!(found.map(|port| (port.lid, port.gid)), port);
        }
    }

    #[test]
    fn only_roce_has_a_gid_of_the_peer() {
        // SAFETY: C structs of numbers and pointers: zeroes are valid.
        let (mut route, mut record): (bindings::rdma_route, bindings::sa_path_rec) =
            unsafe { core::mem::zeroed() };
        // SAFETY: There is no path record, as with iWARP.
        assert_eq!(unsafe { roce_gid(&route) }, None);
        record.dgid.raw = ManuallyDrop::new([7; 16]);
        for (rec_type, gid) in [
            (bindings::sa_path_rec_type_SA_PATH_REC_TYPE_IB, None),
            (bindings::sa_path_rec_type_SA_PATH_REC_TYPE_OPA, None),
            (
                bindings::sa_path_rec_type_SA_PATH_REC_TYPE_ROCE_V1,
                Some([7; 16]),
            ),
            (
                bindings::sa_path_rec_type_SA_PATH_REC_TYPE_ROCE_V2,
                Some([7; 16]),
            ),
        ] {
            record.rec_type = rec_type;
            route.path_rec = &raw mut record;
            // SAFETY: The record lives, and nobody else has it.
            assert_eq!(unsafe { roce_gid(&route) }, gid);
        }
    }

    /// A handler that keeps the id that it gets, and returns the one that it has kept before.
    #[pin_data]
    struct Swap {
        #[pin]
        held: Mutex<Option<ConnRequest>>,
    }

    impl CmHandler for Swap {
        fn event(&self, _event: &CmEvent<'_>) {}

        fn connect_request(
            &self,
            id: ConnRequest,
            _private_data: &[u8],
        ) -> Result<(), ConnRequest> {
            self.held.lock().replace(id).map_or(Ok(()), Err)
        }
    }

    /// If a listener's handler returns another id than it received, it keeps the received one, and
    /// the connection manager does not destroy that.
    #[test]
    fn a_request_is_not_exchanged() -> Result {
        let swap = Arc::pin_init(
            pin_init!(Swap {
                held <- new_mutex!(None, "Swap::held"),
            }),
            GFP_KERNEL,
        )?;
        let listener = Context::new(HandlerSlot::Set(swap.clone()), true)?;
        // An id as the connection manager creates it: nobody here owns it yet.
        let request = || -> Result<NonNull<bindings::rdma_cm_id>> {
            let id = ManuallyDrop::new(id()?);
            // SAFETY: `id` is neither used again nor dropped, and an unbound id gets no events.
            drop(unsafe { ptr::read(&id.context) });
            NonNull::new(id.as_raw()).ok_or(EINVAL)
        };
        // SAFETY: A C struct of numbers and pointers: zeroes are valid.
        let mut event: bindings::rdma_cm_event = unsafe { core::mem::zeroed() };
        // SAFETY: The id is new, and the event has parameters without private data.
        let mut ask = |id: NonNull<bindings::rdma_cm_id>| unsafe {
            handler::connect_request(&listener, id.as_ptr(), &mut event)
        };
        let (first, second) = (request()?, request()?);
        assert_eq!(ask(first), 0);
        let twin = {
            let held = swap.held.lock();
            // SAFETY: This copy is used only after the original was leaked.
            held.as_ref()
                .map(|id| ManuallyDrop::new(unsafe { ptr::read(id) }))
        };
        // Zero: the connection manager leaves the id to its owner.
        assert_eq!(ask(second), 0);
        let kept = swap.held.lock().take();
        assert_eq!(kept.map(|id| id.as_raw()), Some(second.as_ptr()));
        // The test does not leak the first id.
        drop(twin.map(ManuallyDrop::into_inner));
        Ok(())
    }
}
