// SPDX-License-Identifier: GPL-2.0

//! Dispatch of a disk's requests (client): a request is sent, queued or failed, and no queued one
//! is lost.
//!
//! Submitters read the queue state and queue a request while the disk is quiesced; others change
//! the state at the same time. Each first does its own part and then reads the other's: either the
//! submitter sees the new state, or the caller that changes it sees the request.

use crate::state::QueueState;

/// The state of a disk; each method is atomic.
pub trait Disk {
    /// A request of the disk.
    type Request;

    /// The queue state. A caller that reads it sees everything stored before it was set.
    fn queue_state(&self) -> QueueState;
    /// Sets the queue state; fully ordered.
    fn set_queue_state(&self, queue_state: QueueState);
    /// Whether the disk is unmapped by force.
    fn is_gone(&self) -> bool;
    /// Notes that the disk is unmapped by force; fully ordered.
    fn set_gone(&self);
    /// The server's id of the device.
    fn device_id(&self) -> u32;
    /// Sets the server's id of the device.
    fn set_device_id(&self, id: u32);
    /// Full memory barrier: orders stores before it and loads after it.
    fn barrier(&self);
    /// Stores a request in the slot of its tag.
    ///
    /// # Errors
    ///
    /// Returns the request if its tag has no slot, or the slot is taken.
    fn put(&self, tag: u32, request: Self::Request) -> Result<(), Self::Request>;
    /// Takes the request out of the slot of a tag, if there is one, and has it dispatched again.
    fn requeue(&self, tag: u32);
    /// Does the same as [`Disk::requeue`] for all tags.
    fn requeue_all(&self);
}

/// The decision about a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dispatch {
    /// The request is sent, to the device of this id.
    Send(u32),
    /// The request is kept, see [`queue`].
    Queue,
    /// The request ends with an error.
    Fail,
}

/// Returns the decision about a request that arrives now.
#[inline]
pub fn dispatch<D: Disk>(disk: &D) -> Dispatch {
    if disk.is_gone() {
        return Dispatch::Fail;
    }
    match disk.queue_state() {
        QueueState::Live => Dispatch::Send(disk.device_id()),
        QueueState::Quiesced => Dispatch::Queue,
        QueueState::Failing => Dispatch::Fail,
    }
}

/// Queues a request until the queue state changes; then it is dispatched again.
///
/// # Errors
///
/// Returns the request if its tag has no free slot.
pub fn queue<D: Disk>(disk: &D, tag: u32, request: D::Request) -> Result<(), D::Request> {
    disk.put(tag, request)?;
    disk.barrier();
    if dispatch(disk) != Dispatch::Queue {
        disk.requeue(tag);
    }
    Ok(())
}

/// Sets the queue live for the device that the server calls `device_id`.
pub fn open<D: Disk>(disk: &D, device_id: u32) {
    disk.set_device_id(device_id);
    set_state(disk, QueueState::Live);
}

/// Sets the queue state, and dispatches queued requests again unless it is `Quiesced`.
pub fn set_state<D: Disk>(disk: &D, queue_state: QueueState) {
    disk.set_queue_state(queue_state);
    if queue_state != QueueState::Quiesced {
        disk.requeue_all();
    }
}

/// Fails queued requests, and all later ones.
pub fn fail_all<D: Disk>(disk: &D) {
    disk.set_gone();
    disk.requeue_all();
}
