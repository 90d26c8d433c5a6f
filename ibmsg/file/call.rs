// SPDX-License-Identifier: GPL-2.0

//! Calls that wait for their reply, in an ioctl or as a command of io_uring: `struct ibmsg_call`.

use ibtrs_core::convert;
use kernel::{
    bindings,
    prelude::*,
    sync::Arc,
    uaccess::UserPtr, //
};
use kx::file::{
    uring::{
        Command,
        Issue,
        Issued,
        Words, //
    },
    File,
    WaitQueue, //
};

use super::{
    channel::{
        ChannelFile,
        Prepared, //
    },
    CALL_LEN,
    CALL_REPLY_LEN,
    CALL_STATUS,
    MAX_MESSAGE, //
};
use crate::{
    channel::{
        Answered,
        Caller,
        Incoming, //
    },
    types::{
        Arg,
        Body,
        Header,
        Kind,
        F_NOWAIT, //
    }, //
};

/// What a program asks for.
struct Call {
    arg: Arg<CALL_LEN>,
    may_wait: bool,
    request: usize,
    reply: usize,
    room: u32,
    header: Header,
}

impl Call {
    fn read(address: usize) -> Result<Self> {
        let arg = Arg::read(address)?;
        let mut fields = arg.fields();
        let flags = fields.flags(u32::from(F_NOWAIT))?;
        let (request, reply) = (fields.address()?, fields.address()?);
        let (len, room, timeout_ms) = (fields.u32()?, fields.u32()?, fields.u32()?);
        // What the kernel writes there.
        fields.u32()?;
        let header = Header {
            len,
            timeout_ms,
            tag: fields.u64()?,
            ..Header::new(Kind::Request)
        };
        // CAST: Lossless.
        if len as usize > MAX_MESSAGE {
            return Err(EMSGSIZE);
        }
        Ok(Self {
            may_wait: flags == 0,
            request,
            reply,
            room,
            header,
            arg,
        })
    }

    /// The request.
    ///
    /// # Errors
    ///
    /// [`ENOMEM`], [`EFAULT`]
    fn body(&self) -> Result<Body> {
        // CAST: Lossless.
        Body::copied_from(UserPtr::from_addr(self.request), self.header.len as usize)
    }

    /// Gives a reply to the program.
    ///
    /// # Errors
    ///
    /// [`EMSGSIZE`] if it has no room for the content, [`EFAULT`].
    fn takes(&self, reply: &Incoming) -> Result {
        let len = reply.body.len();
        self.arg.write(CALL_REPLY_LEN, &len.to_ne_bytes())?;
        let status = u32::from(reply.status);
        self.arg.write(CALL_STATUS, &status.to_ne_bytes())?;
        if len > self.room {
            return Err(EMSGSIZE);
        }
        reply.body.copy_to(UserPtr::from_addr(self.reply))
    }
}

impl ChannelFile {
    /// Makes a call, and waits for its reply.
    pub(super) fn call(&self, file: &File, address: usize) -> Result<usize> {
        let call = Call::read(address)?;
        let may_wait = call.may_wait && file.flags() & bindings::O_NONBLOCK == 0;
        let waiters: Arc<WaitQueue> =
            Arc::pin_init(kx::new_wait_queue!("ChannelFile::call"), GFP_KERNEL_ACCOUNT)?;
        let reserved = self.reserve(&call.header, may_wait, || Caller::Task(waiters.clone()))?;
        let id = reserved.about.id;
        self.send(reserved, call.body())?;
        // It is not to be made once more after a signal.
        let answer = self.wait(&waiters, id).ok_or(EINTR)?;
        self.give(id, &answer, || Ok(call))
    }

    /// Waits for the answer to a call. None if a signal came first.
    fn wait(&self, waiters: &WaitQueue, call: u64) -> Option<Answered> {
        let its = &self.its;
        let take = || its.side.take_answer(its.channel, call);
        match self.wait_on(waiters, take) {
            Ok(answer) => Some(answer),
            Err(_) => its.side.give_up_call(its.channel, call),
        }
    }

    /// Gives the answer to the program.
    fn give(
        &self,
        id: u64,
        answer: &Answered,
        call: impl FnOnce() -> Result<Call>,
    ) -> Result<usize> {
        let (its, mut len) = (&self.its, 0);
        let result = match answer {
            Answered::Errno(errno) => Err(convert::error(*errno)),
            Answered::Reply(reply) => {
                len = reply.body.len();
                call().and_then(|call| call.takes(reply)).map(|()| 0)
            }
        };
        its.side.took_answer(its.channel, id, len);
        result
    }

    /// Makes a call for a command of io_uring.
    pub(super) fn issue_call<'a>(&self, issue: Issue<'a, Self>) -> Issued<'a> {
        let its = &self.its;
        let address = issue.addr();
        let may_wait = issue.may_wait() && !issue.is_nonblock();
        let (reserved, body, place) = match self.prepare_call(address, may_wait) {
            Ok(prepared) => prepared,
            Err(e) => return issue.fail(e),
        };
        let id = reserved.about.id;
        let (issued, command) = issue.queue([id, address]);
        its.side.attach_call(its.channel, id, command);
        // If that is impossible now, the command has failed.
        let _ = its.side.send(its.channel, reserved, body, place);
        issued
    }

    fn prepare_call(&self, address: u64, may_wait: bool) -> Result<Prepared> {
        let call = Call::read(usize::try_from(address).map_err(|_| EFAULT)?)?;
        let may_wait = may_wait && call.may_wait;
        let reserved = self.reserve(&call.header, may_wait, || Caller::Command(None))?;
        self.prepare(reserved, call.body())
    }

    /// Completes such a call. The program has its structure where it was.
    pub(super) fn complete_call(&self, [id, address]: Words, is_dying: bool) -> Result<usize> {
        let its = &self.its;
        let answer = its.side.take_answer(its.channel, id).ok_or(ECANCELED)?;
        self.give(id, &answer, || match is_dying {
            // As after a signal: nobody knows what has become of the call.
            true => Err(EINTR),
            false => Call::read(usize::try_from(address).map_err(|_| EFAULT)?),
        })
    }

    /// Ends such a call at once.
    pub(super) fn cancel_call(&self, [id, _]: Words) -> Option<(Command, Error)> {
        Some((self.its.side.cancel_call(self.its.channel, id)?, EINTR))
    }
}
