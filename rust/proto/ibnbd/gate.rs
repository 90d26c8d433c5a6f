// SPDX-License-Identifier: GPL-2.0

//! Requests at the gate of a disk (client): whether they are sent, and how none is forgotten that
//! waits there.
//!
//! Submitters look at the gate, and put a request aside while it holds; others move the gate at the
//! same time. Each of them first does its own part and then looks at the other's: either the
//! submitter sees that the gate has moved, or who moves it sees the request.

use crate::state::Gate;

/// What a disk keeps, whose methods are atomic each.
pub trait Disk {
    /// A request.
    type Request;

    /// How the gate stands. What was stored before it was moved there is seen after this.
    fn gate(&self) -> Gate;
    /// Moves the gate; fully ordered.
    fn set_gate(&self, gate: Gate);
    /// Whether the disk goes, no matter who uses it.
    fn is_gone(&self) -> bool;
    /// It does; fully ordered.
    fn set_gone(&self);
    /// The server's number of the device.
    fn device_id(&self) -> u32;
    /// Stores that number.
    fn set_device_id(&self, id: u32);
    /// Orders what was stored before it and what is looked at after it.
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

/// What becomes of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It is sent for the device of this number.
    Send(u32),
    /// It is kept, see [`hold`].
    Hold,
    /// It ends.
    Fail,
}

/// What becomes of a request that comes now.
#[inline]
pub fn verdict<D: Disk>(disk: &D) -> Verdict {
    if disk.is_gone() {
        return Verdict::Fail;
    }
    match disk.gate() {
        Gate::Pass => Verdict::Send(disk.device_id()),
        Gate::Hold => Verdict::Hold,
        Gate::Fail => Verdict::Fail,
    }
}

/// Keeps a request until the gate is moved; then it is queued once more.
///
/// # Errors
///
/// The request, if there is no place for it.
pub fn hold<D: Disk>(disk: &D, tag: u32, request: D::Request) -> Result<(), D::Request> {
    disk.put(tag, request)?;
    disk.barrier();
    if verdict(disk) != Verdict::Hold {
        disk.requeue(tag);
    }
    Ok(())
}

/// Lets requests go to the device that the server calls `device_id`.
pub fn open<D: Disk>(disk: &D, device_id: u32) {
    disk.set_device_id(device_id);
    set(disk, Gate::Pass);
}

/// Moves the gate, and lets those be decided about again that wait before it.
pub fn set<D: Disk>(disk: &D, gate: Gate) {
    disk.set_gate(gate);
    if gate != Gate::Hold {
        disk.requeue_all();
    }
}

/// Lets requests that wait, and all later ones, fail.
pub fn go<D: Disk>(disk: &D) {
    disk.set_gone();
    disk.requeue_all();
}
