// SPDX-License-Identifier: GPL-2.0

//! Slots, the objects to which completions are reported.
//!
//! A completion contains the address of a `struct ib_cqe`, which the work request named when it was
//! posted. These entries are embedded in the slots of a table that the queue pair keeps alive. The
//! address therefore never dangles, and a completion is reported with a reference to its slot.
//!
//! # Examples
//!
//! ```
//! # use kernel::{prelude::*, sync::Arc};
//! # use rdma::{qp::{Handler, QpRef, QueuePair}, recv::{Received, Repost}, wc::Wc};
//! # struct Messages;
//! #
//! # impl Handler for Messages {
//! #     type Slot = ();
//! #
//! #     fn received(&self, _qp: QpRef<'_, Self>, message: Received<'_>) -> Repost {
//! #         let _ = message.bytes;
//! #         Repost::Yes
//! #     }
//! #
//! #     fn failed(&self, qp: QpRef<'_, Self>, wc: &Wc) {
//! #         if !wc.is_flush() {
//! #             qp.disconnect();
//! #         }
//! #     }
//! # }
//! use rdma::{
//!     dma::DmaBuf,
//!     sendq::{Doorbell, Signal, SqSpace},
//!     slot::{Kind, Slots},
//! };
//!
//! /// Sends a message, whose completion is reported with slot 3: [`Handler::sent`].
//! fn send(qp: &QueuePair<Messages>, message: &DmaBuf) -> Result {
//!     qp.set_slots(Slots::new(8, |_index| Ok(Ok(())))?)?;
//!     let slot = qp.slot(3).ok_or(EINVAL)?;
//!     let from = message.sge(0, 16)?;
//!     qp.send(SqSpace { wrs: 1, sges: 1 }, Doorbell::Now, |chain| {
//!         chain.send([from], Signal::Slot(slot, Kind::Send));
//!     })
//! }
//! ```

use core::{
    marker::PhantomData,
    pin::Pin, //
};

use crate::qp::{
    sendq,
    Handler, //
};
use ibtrs_bindings as bindings;
use kernel::{
    prelude::*,
    sync::Arc,
    types::Opaque, //
};

/// The kinds of completions of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The slot's message was sent.
    Send,
    /// The slot's key was invalidated, its data was read from the peer, or earlier messages were
    /// acknowledged: its request can proceed.
    Other,
}

/// An object with completion entries and the driver's data. It dereferences to the data.
#[pin_data]
#[repr(C)]
pub struct Slot<H: Handler> {
    #[pin]
    send: Opaque<bindings::ib_cqe>,
    #[pin]
    other: Opaque<bindings::ib_cqe>,
    index: u16,
    #[pin]
    data: H::Slot,
    _handler: PhantomData<fn(&H)>,
}

// SAFETY: The completion entries are constant once created, and the data is `Sync`.
unsafe impl<H: Handler> Sync for Slot<H> {}
// SAFETY: The completion entries have no thread affinity, and the data is `Send`.
unsafe impl<H: Handler> Send for Slot<H> {}

impl<H: Handler> Slot<H> {
    fn new(index: u16, data: impl PinInit<H::Slot, Error>) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            send: Opaque::new(bindings::ib_cqe {
                done: Some(sendq::sent_done::<H>),
            }),
            other: Opaque::new(bindings::ib_cqe {
                done: Some(sendq::other_done::<H>),
            }),
            index,
            data <- data,
            _handler: PhantomData,
        }? Error)
    }

    /// Returns the slot's index in its table.
    #[inline]
    pub fn index(&self) -> u16 {
        self.index
    }

    pub(crate) fn cqe(&self, kind: Kind) -> *mut bindings::ib_cqe {
        match kind {
            Kind::Send => self.send.get(),
            Kind::Other => self.other.get(),
        }
    }

    /// Recovers the slot of the completion entry `cqe`.
    ///
    /// # Safety
    ///
    /// `cqe` must be the entry `kind` of a slot that lives during `'a`.
    #[inline]
    pub(crate) unsafe fn from_cqe<'a>(cqe: *mut bindings::ib_cqe, kind: Kind) -> &'a Self {
        let cqe: *mut Opaque<bindings::ib_cqe> = cqe.cast();
        // SAFETY: By this function's contract the entry is that field of a slot.
        unsafe {
            match kind {
                Kind::Send => &*kernel::container_of!(cqe, Self, send),
                Kind::Other => &*kernel::container_of!(cqe, Self, other),
            }
        }
    }
}

/// Dereferences to the driver's data.
impl<H: Handler> core::ops::Deref for Slot<H> {
    type Target = H::Slot;

    #[inline]
    fn deref(&self) -> &H::Slot {
        &self.data
    }
}

/// A table of slots, shared by the queue pairs of one connection.
pub struct Slots<H: Handler> {
    slots: KVVec<Pin<KBox<Slot<H>>>>,
}

impl<H: Handler> Slots<H> {
    /// Creates a table of `count` slots; `init` initialises the data of each.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, or the error of an initialiser.
    pub fn new<I: PinInit<H::Slot, Error>>(
        count: u16,
        mut init: impl FnMut(u16) -> Result<I>,
    ) -> Result<Arc<Self>> {
        let mut slots = KVVec::with_capacity(usize::from(count), GFP_KERNEL)?;
        for index in 0..count {
            let slot = KBox::pin_init(Slot::new(index, init(index)?), GFP_KERNEL)?;
            slots.push(slot, GFP_KERNEL)?;
        }
        Ok(Arc::new(Self { slots }, GFP_KERNEL)?)
    }

    /// Returns the slot `index`, if the table has it.
    #[inline]
    pub fn get(&self, index: u16) -> Option<SlotRef<'_, H>> {
        let slot = self.slots.get(usize::from(index))?;
        Some(SlotRef { table: self, slot })
    }

    /// Iterates over all slots.
    pub fn iter(&self) -> impl Iterator<Item = SlotRef<'_, H>> {
        self.slots
            .iter()
            .map(move |slot| SlotRef { table: self, slot })
    }
}

/// A slot together with its table.
pub struct SlotRef<'a, H: Handler> {
    table: &'a Slots<H>,
    slot: &'a Slot<H>,
}

impl<'a, H: Handler> SlotRef<'a, H> {
    /// Creates a reference to a slot of `table`.
    ///
    /// # Safety
    ///
    /// `slot` must be in `table`.
    pub(crate) unsafe fn new(table: &'a Slots<H>, slot: &'a Slot<H>) -> Self {
        Self { table, slot }
    }

    pub(crate) fn table(&self) -> *const Slots<H> {
        self.table
    }
}

impl<H: Handler> Clone for SlotRef<'_, H> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<H: Handler> Copy for SlotRef<'_, H> {}

impl<'a, H: Handler> core::ops::Deref for SlotRef<'a, H> {
    type Target = Slot<H>;

    #[inline]
    fn deref(&self) -> &Slot<H> {
        self.slot
    }
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(rdma_slot)]
mod tests {
    use super::*;
    use crate::{
        qp::QpRef,
        recv::{
            Received,
            Repost, //
        },
        wc::Wc,
    };

    struct Nobody;

    #[pin_data]
    struct Data {
        number: u16,
    }

    fn data(number: u16) -> impl PinInit<Data, Error> {
        try_pin_init!(Data { number }? Error)
    }

    impl Handler for Nobody {
        type Slot = Data;

        fn received(&self, _qp: QpRef<'_, Self>, _message: Received<'_>) -> Repost {
            Repost::No
        }

        fn failed(&self, _qp: QpRef<'_, Self>, _wc: &Wc) {}
    }

    fn table(count: u16) -> Result<Arc<Slots<Nobody>>> {
        Slots::new(count, |index| Ok(data(index * 10)))
    }

    #[test]
    fn completions_find_their_slot() -> Result {
        let slots = table(100)?;
        for (index, slot) in slots.iter().enumerate() {
            assert_eq!(slot.index() as usize, index);
            assert_eq!(slot.number, slot.index() * 10);
            for kind in [Kind::Send, Kind::Other] {
                // SAFETY: The argument is the entry of that kind of a slot that is live.
                let found = unsafe { Slot::<Nobody>::from_cqe(slot.cqe(kind), kind) };
                assert!(core::ptr::eq(found, &*slot));
            }
            assert!(slot.cqe(Kind::Send) != slot.cqe(Kind::Other));
        }
        assert!(slots.get(99).is_some() && slots.get(100).is_none());
        Ok(())
    }

    #[test]
    fn slots_know_their_table() -> Result {
        let (one, other) = (table(1)?, table(1)?);
        let slot = one.get(0).ok_or(EINVAL)?;
        assert!(core::ptr::eq(slot.table(), &*one));
        assert!(!core::ptr::eq(slot.table(), &*other));
        Ok(())
    }

    #[test]
    fn a_table_is_whole_or_not_at_all() {
        let slots = Slots::<Nobody>::new(5, |index| match index {
            3 => Err(ENOMEM),
            _ => Ok(data(index)),
        });
        assert!(matches!(slots, Err(ENOMEM)));
    }
}
