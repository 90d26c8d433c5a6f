// SPDX-License-Identifier: GPL-2.0

//! Tasks and commands of io_uring that wait for an operation.

use ibmsg_proto::{
    memory::{
        OpOutcome,
        Refusal, //
    },
    outcome::Cause, //
};
use ibtrs_proto::Errno;
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kx::file::{
    uring::Command,
    Ready,
    WaitQueue, //
};

use super::{
    Memory,
    MAX_OPS, //
};

/// What has become of an operation, for its program.
pub(crate) type Outcome = core::result::Result<(), Errno>;

/// Who waits for an operation.
pub(crate) enum Waits {
    /// A task.
    Task(Arc<WaitQueue>),
    /// A command of io_uring, unless it is being completed, or is still to be attached.
    Command(Option<Command>),
}

/// An operation that somebody waits for.
pub(crate) struct Waiter {
    pub(super) number: u32,
    waits: Waits,
    outcome: Option<Outcome>,
}

/// The outcome of an operation for its program: `refusal` says why the peer has refused it, `cause` why it has ended
/// otherwise.
pub(super) fn told(outcome: OpOutcome, refusal: Option<Refusal>, cause: Cause) -> Outcome {
    match (outcome, refusal) {
        (OpOutcome::Done, _) => Ok(()),
        (OpOutcome::NotDone, Some(refusal)) => Err(refusal.errno()),
        (OpOutcome::NotDone, None) => Err(Errno::ECANCELED),
        (OpOutcome::Torn, _) => Err(Errno::EIO),
        (OpOutcome::Unknown, _) => Err(match cause {
            Cause::Timeout => Errno::ETIMEDOUT,
            Cause::Closed | Cause::PeerLost => Errno::ECONNABORTED,
        }),
    }
}

impl Memory {
    /// Makes a place for an operation. Returns its number.
    ///
    /// # Errors
    ///
    /// [`EAGAIN`]: there are as many as there may be.
    pub(crate) fn begin_op(&mut self, waits: Waits) -> Result<u32> {
        if self.waiters.len() >= MAX_OPS {
            return Err(EAGAIN);
        }
        let number = self.next_number();
        let waiter = Waiter {
            number,
            waits,
            outcome: None,
        };
        self.waiters
            .push_within_capacity(waiter)
            .map_err(|_| EAGAIN)?;
        Ok(number)
    }

    /// An operation has ended; only the first outcome counts. Nobody may wait for it any more.
    pub(crate) fn end_op(&mut self, number: u32, outcome: Outcome) {
        let mut waiters = self.waiters.iter_mut();
        let waiter = waiters.find(|waiter| waiter.number == number && waiter.outcome.is_none());
        if let Some(waiter) = waiter {
            waiter.outcome = Some(outcome);
            match &mut waiter.waits {
                Waits::Task(waiters) => waiters.wake(Ready::IN),
                Waits::Command(command) => {
                    if let Some(command) = command.take() {
                        command.complete();
                    }
                }
            }
        }
    }

    /// Attaches the command that waits for an operation, which has not begun. If it was cancelled meanwhile, it fails.
    pub(crate) fn attach_op(&mut self, number: u32, command: Command) {
        let mut waiters = self.waiters.iter_mut();
        match waiters.find(|waiter| waiter.number == number) {
            Some(Waiter {
                waits: Waits::Command(place),
                ..
            }) => *place = Some(command),
            _ => command.fail(ECANCELED),
        }
    }

    /// The command that waits for an operation is to end at once. Returns it, unless it is being completed, or is not
    /// attached: then it ends when it is. Nobody waits for the operation any more, so that it does not begin if it has
    /// not.
    pub(crate) fn detach_op(&mut self, number: u32) -> Option<Command> {
        let mut waiters = self.waiters.iter();
        let at = waiters.position(|waiter| {
            let is_command = matches!(waiter.waits, Waits::Command(_));
            waiter.number == number && is_command && waiter.outcome.is_none()
        })?;
        match self.waiters.remove(at).ok()?.waits {
            Waits::Command(command) => command,
            Waits::Task(_) => None,
        }
    }

    /// Whether somebody waits for an operation, which is to begin. If not, its command was cancelled, and may have
    /// completed: nothing of it may reach the memory of either program.
    pub(crate) fn may_begin(&self, number: u32) -> bool {
        let mut waiters = self.waiters.iter();
        waiters.any(|waiter| waiter.number == number && waiter.outcome.is_none())
    }

    /// Takes the outcome of an operation, if it has ended.
    pub(crate) fn take_outcome(&mut self, number: u32) -> Option<Outcome> {
        let mut waiters = self.waiters.iter();
        let at = waiters.position(|waiter| waiter.number == number && waiter.outcome.is_some())?;
        self.waiters.remove(at).ok()?.outcome
    }

    /// Nobody waits any longer.
    pub(crate) fn leave_op(&mut self, number: u32) {
        self.waiters.retain(|waiter| waiter.number != number);
    }
}
