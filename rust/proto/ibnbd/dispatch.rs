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
    /// A request.
    type Request;

    /// The queue state. A caller that reads it sees everything stored before it was set.
    fn queue_state(&self) -> QueueState;
    /// Sets the queue state; fully ordered.
    fn set_queue_state(&self, queue_state: QueueState);
    /// Whether the disk goes, no matter who uses it.
    fn is_gone(&self) -> bool;
    /// It does; fully ordered.
    fn set_gone(&self);
    /// The server's number of the device.
    fn device_id(&self) -> u32;
    /// Stores that number.
    fn set_device_id(&self, id: u32);
    /// Orders stores before the fence and loads after it.
    fn barrier(&self);
    /// Puts a request aside, in the place of its tag.
    ///
    /// # Errors
    ///
    /// The request, if there is no such place, or one is there already.
    fn put(&self, tag: u32, request: Self::Request) -> Result<(), Self::Request>;
    /// Queues the request in the place of a tag once more, if there is one.
    fn requeue(&self, tag: u32);
    /// The same for all tags.
    fn requeue_all(&self);
}

/// The decision about a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dispatch {
    /// It is sent for the device of this number.
    Send(u32),
    /// It is kept, see [`queue`].
    Queue,
    /// It ends.
    Fail,
}

/// Returns what becomes of a request that comes now.
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
/// The request, if there is no place for it.
pub fn queue<D: Disk>(disk: &D, tag: u32, request: D::Request) -> Result<(), D::Request> {
    disk.put(tag, request)?;
    disk.barrier();
    if dispatch(disk) != Dispatch::Queue {
        disk.requeue(tag);
    }
    Ok(())
}

/// Sends requests to the device that the server calls `device_id`.
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
