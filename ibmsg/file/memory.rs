// SPDX-License-Identifier: GPL-2.0

//! Memory of programs: `struct ibmsg_map`, `struct ibmsg_unmap`, `struct ibmsg_copy`.

use core::mem::MaybeUninit;
use ibmsg_proto::memory::{
    Handle,
    Range,
    Rights, //
};
use ibtrs_core::convert;
use ibtrs_proto::Errno;
use kernel::{
    bindings,
    page::PAGE_SIZE,
    prelude::*,
    sync::Arc, //
};
use kx::{
    file::{
        uring::{
            Command,
            Issue,
            Issued,
            Words, //
        },
        File,
        WaitQueue, //
    },
    module::ModuleRef,
    sync::SetOnce,
    user::{
        Owner,
        Purpose,
        UserPages, //
    }, //
};

use super::{
    channel::ChannelFile,
    COPY_LEN,
    MAP_HANDLE,
    MAP_LEN,
    MEM_BODY,
    MEM_GET,
    MEM_PUT,
    PUT,
    RELEASE_LEN,
    UNMAP_LEN, //
};
use crate::{
    channel::{
        Caller,
        Copied,
        Reserved,
        Sent, //
    },
    memory::{
        PutOp,
        Waits, //
    },
    session::Side,
    types::{
        Arg,
        Bytes,
        Header,
        Kind,
        F_NOWAIT, //
    }, //
};

/// The program whose memory is published under a handle.
struct Publisher {
    side: Side,
    channel: u32,
    handle: SetOnce<Handle>,
}

impl Owner for Publisher {
    fn module(&self) -> Option<ModuleRef> {
        ModuleRef::get::<crate::LocalModule>()
    }

    fn exits(&self) {
        if let Some(handle) = self.handle.as_ref() {
            self.side.owner_exits(self.channel, *handle);
        }
    }
}

/// `struct ibmsg_copy`.
struct Copy {
    may_wait: bool,
    handle: Handle,
    range: Range,
    address: usize,
    len: usize,
    timeout_ms: u32,
}

impl Copy {
    fn read(address: usize) -> Result<Self> {
        let arg = Arg::<COPY_LEN>::read(address)?;
        let mut fields = arg.fields();
        let flags = fields.flags(u32::from(F_NOWAIT))?;
        let handle = handle(&mut fields)?;
        let (offset, address, len) = (fields.u64()?, fields.address()?, fields.u64()?);
        let timeout_ms = fields.u32()?;
        fields.reserved()?;
        Ok(Self {
            may_wait: flags == 0,
            handle,
            range: Range::new(offset, len).ok_or(EINVAL)?,
            address,
            len: usize::try_from(len).map_err(|_| EFAULT)?,
            timeout_ms,
        })
    }
}

/// A copy that can begin.
struct Prepared {
    what: Copied,
    how: How,
}

enum How {
    /// In this place in the queue, with memory for it.
    Put(
        Reserved,
        (KBox<MaybeUninit<Sent>>, KBox<MaybeUninit<PutOp>>),
    ),
    /// Within that many milliseconds.
    Get(u32),
}

/// Marks the words of commands that copy. A call has an address in the other word, and a number that never grows so large.
const COPY: u64 = 1 << 63;

/// The number of the operation of a command that copies.
fn number_of([number, address]: Words) -> Option<u32> {
    // CAST: Operations have numbers of 24 bits.
    (number & COPY != 0 && address == 0).then_some(number as u32)
}

/// A handle, which no kernel may have made.
fn handle(fields: &mut Bytes<'_>) -> Result<Handle> {
    Handle::from_wire(fields.u64()?).ok_or(ESTALE)
}

fn waiters() -> Result<Arc<WaitQueue>> {
    let waiters = kx::new_wait_queue!("ChannelFile::memory");
    Arc::pin_init(waiters, GFP_KERNEL_ACCOUNT)
}

impl ChannelFile {
    /// Publishes memory of the program.
    pub(super) fn map(&self, address: usize) -> Result<usize> {
        let arg = Arg::<MAP_LEN>::read(address)?;
        let mut fields = arg.fields();
        let flags = fields.flags(MEM_GET | MEM_PUT | MEM_BODY)?;
        let (address, len, offset) = (fields.address()?, fields.u64()?, fields.u64()?);
        let range = Range::new(offset, len).ok_or(EINVAL)?;
        let rights = Rights {
            read: flags & MEM_GET != 0,
            write: flags & MEM_PUT != 0,
        };
        // A piece of the range then has no more pages than a region.
        let is_aligned = (address as u64).wrapping_sub(offset) % PAGE_SIZE as u64 == 0;
        // Until it is that, the other program has no use for a body.
        let is_body = flags & MEM_BODY != 0;
        if flags == 0 || !is_aligned || (is_body && flags != MEM_BODY) {
            return Err(EINVAL);
        }
        let its = &self.its;
        if is_body {
            its.side.may_lend(its.channel)?;
        }
        its.side.prepare_memory(its.channel)?;
        let purpose = match rights.write {
            true => Purpose::Written,
            false => Purpose::Read,
        };
        let publisher = Publisher {
            side: its.side.clone(),
            channel: its.channel,
            handle: SetOnce::new(),
        };
        let publisher = Arc::new(publisher, GFP_KERNEL_ACCOUNT)?;
        let owner: Arc<dyn Owner> = publisher.clone();
        let len = usize::try_from(len).map_err(|_| EFAULT)?;
        let pages = UserPages::pin(address, len, purpose, Some(owner))?;
        let handle = its.side.publish(its.channel, range, rights, pages)?;
        // The address space does not end during a system call.
        publisher.handle.populate(handle);
        let written = arg.write(MAP_HANDLE, &handle.to_wire().to_ne_bytes());
        if let Err(e) = written {
            let _ = its.side.unmap(its.channel, handle);
            return Err(e);
        }
        Ok(0)
    }

    /// Takes a handle back.
    pub(super) fn unmap(&self, address: usize) -> Result<usize> {
        let arg = Arg::<UNMAP_LEN>::read(address)?;
        let mut fields = arg.fields();
        let flags = fields.flags(u32::from(F_NOWAIT))?;
        let handle = handle(&mut fields)?;
        let its = &self.its;
        // Nothing here needs memory: it could not be taken back without.
        let waiters = its.side.unmap(its.channel, handle)?;
        let is_free = || its.side.is_unmapped(its.channel, handle).then_some(());
        if flags != 0 {
            return is_free().map(|()| 0).ok_or(EBUSY);
        }
        // It goes on after a signal, and is not to be done once more.
        let waited = waiters.wait(None, is_free).map_err(|_| EINTR);
        waited.map(|()| 0)
    }

    /// Releases the body of a message.
    pub(super) fn release(&self, address: usize, may_wait: bool) -> Result<usize> {
        let arg = Arg::<RELEASE_LEN>::read(address)?;
        let mut fields = arg.fields();
        let flags = fields.flags(u32::from(F_NOWAIT))?;
        let handle = handle(&mut fields)?;
        let its = &self.its;
        if !its.side.holds(its.channel, handle) {
            return Err(ESTALE);
        }
        let place = KBox::new_uninit(GFP_KERNEL_ACCOUNT)?;
        let header = Header::new(Kind::Msg);
        let may_wait = may_wait && flags == 0;
        // It has no outcome and no time: the other program waits for it.
        let reserved = self.reserve(&header, may_wait, || Caller::Nobody)?;
        let released = its.side.release_body(its.channel, reserved, handle, place);
        released.map(|()| 0)
    }

    /// Copies memory to that of the other program, or with `GET` the other way, and waits for that.
    pub(super) fn copy_memory(&self, file: &File, cmd: u32, address: usize) -> Result<usize> {
        let may_wait = file.flags() & bindings::O_NONBLOCK == 0;
        let waiters = waiters()?;
        let prepared = self.prepare_copy(cmd, address, may_wait)?;
        let (number, prepared) = self.begin_copy(prepared, Waits::Task(waiters.clone()))?;
        self.start_copy(number, prepared);
        let its = &self.its;
        let outcome = || its.side.take_outcome(its.channel, number);
        let outcome = match waiters.wait(None, outcome) {
            Ok(outcome) => outcome,
            // It is not to be done once more after a signal.
            Err(_) => match its.side.give_up_op(its.channel, number) {
                Some(Err(Errno::ETIMEDOUT)) | None => return Err(EINTR),
                Some(outcome) => outcome,
            },
        };
        outcome.map(|()| 0).map_err(convert::error)
    }

    /// The same for a command of io_uring.
    pub(super) fn issue_copy<'a>(&self, issue: Issue<'a, Self>) -> Issued<'a> {
        let may_wait = issue.may_wait() && !issue.is_nonblock();
        let address = usize::try_from(issue.addr()).map_err(|_| EFAULT);
        let prepared = address
            .and_then(|address| self.prepare_copy(issue.op(), address, may_wait))
            .and_then(|prepared| self.begin_copy(prepared, Waits::Command(None)));
        let (number, prepared) = match prepared {
            Ok(prepared) => prepared,
            Err(e) => return issue.fail(e),
        };
        let its = &self.its;
        let (issued, command) = issue.queue([COPY | u64::from(number), 0]);
        its.side.attach_op(its.channel, number, command);
        // If it ends at once, so does the command.
        self.start_copy(number, prepared);
        issued
    }

    /// Completes such a command; none if it is another one.
    pub(super) fn complete_copy(&self, words: Words) -> Option<Result<usize>> {
        let number = number_of(words)?;
        let its = &self.its;
        let outcome = its.side.take_outcome(its.channel, number);
        Some(match outcome {
            Some(outcome) => outcome.map(|()| 0).map_err(convert::error),
            None => Err(ECANCELED),
        })
    }

    /// Ends such a command at once; none if it is another one.
    pub(super) fn cancel_copy(&self, words: Words) -> Option<Option<(Command, Error)>> {
        let number = number_of(words)?;
        let command = self.its.side.cancel_op(self.its.channel, number);
        Some(command.map(|command| (command, EINTR)))
    }

    fn prepare_copy(&self, cmd: u32, address: usize, may_wait: bool) -> Result<Prepared> {
        let copy = Copy::read(address)?;
        let its = &self.its;
        its.side.prepare_memory(its.channel)?;
        let (purpose, is_put) = match cmd {
            PUT => (Purpose::ReadOnce, true),
            _ => (Purpose::Written, false),
        };
        if !copy.may_wait && !is_put {
            return Err(EINVAL);
        }
        let pages = UserPages::pin(copy.address, copy.len, purpose, None)?;
        let how = match is_put {
            true => {
                let place = KBox::new_uninit(GFP_KERNEL_ACCOUNT)?;
                let put = KBox::new_uninit(GFP_KERNEL_ACCOUNT)?;
                let header = Header {
                    timeout_ms: copy.timeout_ms,
                    ..Header::new(Kind::Msg)
                };
                let may_wait = may_wait && copy.may_wait;
                let reserved = self.reserve(&header, may_wait, || Caller::Reader)?;
                How::Put(reserved, (place, put))
            }
            false => How::Get(copy.timeout_ms),
        };
        Ok(Prepared {
            what: (copy.handle, copy.range, pages),
            how,
        })
    }

    fn begin_copy(&self, prepared: Prepared, waits: Waits) -> Result<(u32, Prepared)> {
        let its = &self.its;
        match its.side.begin_op(its.channel, waits) {
            Ok(number) => Ok((number, prepared)),
            Err(e) => {
                if let How::Put(reserved, _) = prepared.how {
                    its.side.cancel(its.channel, reserved);
                }
                Err(e)
            }
        }
    }

    fn start_copy(&self, number: u32, Prepared { what, how }: Prepared) {
        let (side, channel) = (&self.its.side, self.its.channel);
        match how {
            How::Put(reserved, places) => side.put(channel, number, reserved, what, places),
            How::Get(timeout_ms) => side.get(channel, number, what, timeout_ms),
        }
    }
}
