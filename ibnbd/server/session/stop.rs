// SPDX-License-Identifier: GPL-2.0

//! The planned stop of a session.
//!
//! A stopped session serves no more requests. For each of its devices, a worker waits until the
//! requests in service have ended, flushes the disk and notifies the client that everything is
//! durable. The client then need not fail a flush when it reopens the disk with another cache
//! generation ([`ibnbd_proto::unflushed`]).
//!
//! Contexts: *may sleep*, unless stated otherwise.

use super::{
    open::OpenDevice,
    Session, //
};
use crate::device::Opened;
use ibtrs_core::convert;
use ibtrs_proto::imm::notice_number;
use ibtrs_server::Deadline;
use kernel::{
    prelude::*,
    str::CString,
    sync::Arc,
    time::{
        delay::fsleep,
        Delta, //
    }, //
};
use kx::{
    pr_err_ratelimited,
    pr_warn_ratelimited,
    sync::{
        atomic::{
            AtomicFlag,
            Relaxed, //
        },
        Completion,
        PercpuEnd, //
    },
    work::Queue, //
};

/// Interval in milliseconds at which a worker checks whether the requests of a device have ended.
const CHECK_MS: i64 = 5;
/// Interval in milliseconds at which the server repeats an unanswered message.
const AGAIN_MS: u32 = 200;
/// Time limit in milliseconds for the answer of a client, whose machine may be dead.
const ANSWER_MS: u32 = 10_000;

/// A device in a planned stop.
#[pin_data]
pub(crate) struct Stopping {
    /// Number of the device in notices.
    number: u32,
    name: CString,
    /// The client has acknowledged that the device is durable.
    #[pin]
    seen: Completion,
    /// The device could not be made durable; written before `over` is completed.
    failed: AtomicFlag,
    /// The worker has closed the device.
    #[pin]
    over: Completion,
}

impl Session {
    /// Stops the session in an orderly way, at the latest by `limit`.
    ///
    /// # Errors
    ///
    /// `ETIMEDOUT` if a device is not closed by then, or could not be flushed.
    pub(crate) fn stop(self: &Arc<Self>, closers: &Queue, limit: Deadline) -> Result {
        let mut result = Ok(());
        let devices = self.take_all(false);
        if self.has_lost_devices() {
            // The last path was lost during the stop, and the devices were closed without a flush.
            result = Err(ETIMEDOUT);
        }
        let mut stopping = KVec::new();
        for device in devices {
            match Stopping::begin(self, device, closers, limit) {
                // If the allocation fails, this stop does not wait for the worker of the device.
                Ok(this) => {
                    if stopping.push(this, GFP_KERNEL).is_err() {
                        result = Err(ETIMEDOUT);
                    }
                }
                Err(error) => {
                    pr_err_ratelimited!(
                        "{}: the planned stop of a device failed ({}); its client treats unflushed writes as lost\n",
                        self.name(),
                        convert::errno(error).as_str()
                    );
                    result = Err(ETIMEDOUT);
                }
            }
        }
        for device in &stopping {
            if device.over.wait_timeout(limit.left_ms().max(1)).is_err() {
                pr_err_ratelimited!(
                    "{}: {} is not flushed after stop_timeout_s: the client treats its unflushed writes as lost\n",
                    self.name(),
                    *device.name
                );
                result = Err(ETIMEDOUT);
            } else if device.failed.load(Relaxed) {
                result = Err(ETIMEDOUT);
            }
        }
        result
    }

    /// Records that the client has acknowledged that a device is durable.
    ///
    /// # Context
    ///
    /// Any.
    pub(crate) fn durable_seen(&self, number: u32) {
        let stopping = self.stopping.lock();
        for device in stopping.iter().filter(|device| device.number == number) {
            device.seen.complete_all();
        }
    }
}

impl Stopping {
    /// Starts to stop a device, on a worker of `closers`.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    fn begin(
        session: &Arc<Session>,
        device: OpenDevice,
        closers: &Queue,
        limit: Deadline,
    ) -> Result<Arc<Self>> {
        let OpenDevice {
            id,
            name,
            _dir: dir,
            // Bound before `device`, so that `device` is dropped first if this fails: its drop
            // waits for its I/O, and the export must stay granted until the I/O has ended.
            granted,
            device,
            ..
        } = device;
        drop(dir);
        let this = Arc::pin_init(
            pin_init!(Self {
                number: notice_number(id),
                name,
                seen <- Completion::new(),
                failed: AtomicFlag::new(false),
                over <- Completion::new(),
            }),
            GFP_KERNEL,
        )?;
        session.expect(this.clone())?;
        let (stopping, session) = (this.clone(), session.clone());
        let end = device.end();
        closers.spawn(GFP_KERNEL, move || {
            if end.access().writes() && stopping.settle(&session, &end, limit).is_err() {
                stopping.failed.store(true, Relaxed);
            }
            // Before `over`: the device is free once the session has ended, unless the limit
            // passes.
            drop(end);
            // The export counts as open until its device is closed.
            drop(granted);
            stopping.over.complete_all();
            drop(session);
        })?;
        Ok(this)
    }

    /// Makes the device durable, and notifies the client.
    ///
    /// # Errors
    ///
    /// `ETIMEDOUT` if requests are still in service at `limit`; errors of the flush.
    fn settle(&self, session: &Session, device: &PercpuEnd<Opened>, limit: Deadline) -> Result {
        // Also waits for withdrawn devices of the session: they may be of the same disk, and the
        // report below covers their answers, too.
        while !device.is_over() || session.is_closing() {
            if limit.has_passed() {
                return Err(ETIMEDOUT);
            }
            fsleep(Delta::from_millis(CHECK_MS));
        }
        if let Err(error) = device.bdev().flush() {
            pr_err_ratelimited!(
                "{}: {} cannot be flushed ({}): the client treats its unflushed writes as lost\n",
                session.name(),
                *self.name,
                convert::errno(error).as_str()
            );
            return Err(error);
        }
        // A client that is alive answers at once.
        let limit = Deadline::in_ms(limit.left_ms().min(ANSWER_MS));
        while session.tell_durable(self.number) {
            let pause = limit.left_ms().min(AGAIN_MS);
            if self.seen.wait_timeout(pause.max(1)).is_ok() {
                break;
            }
            if limit.has_passed() {
                pr_warn_ratelimited!(
                    "{}: the client has not acknowledged that {} is flushed\n",
                    session.name(),
                    *self.name
                );
                break;
            }
        }
        Ok(())
    }
}

impl Session {
    /// Reports to the client that the writes to a device are durable; returns `false` if the client
    /// cannot acknowledge that.
    fn tell_durable(&self, number: u32) -> bool {
        match &*self.notices.lock() {
            Some(notices) => !matches!(notices.durable(number), Err(ENOTCONN)),
            None => false,
        }
    }
}
