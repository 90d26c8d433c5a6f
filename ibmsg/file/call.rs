// SPDX-License-Identifier: GPL-2.0

//! Calls that wait for their reply: `struct ibmsg_call`.

use ibtrs_proto::Errno;
use kernel::{
    bindings,
    prelude::*,
    sync::Arc,
    uaccess::UserPtr, //
};
use kx::file::{
    File,
    WaitQueue, //
};

use super::{
    channel::ChannelFile,
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
        // CAST: Lossless.
        let len = call.header.len as usize;
        self.send(
            reserved,
            Body::copied_from(UserPtr::from_addr(call.request), len),
        )?;
        let answer = match self.wait(&waiters, id) {
            Some(answer) => answer,
            // It is not to be made once more.
            None => return Err(EINTR),
        };
        let (its, mut len) = (&self.its, 0);
        let result = match &answer {
            Answered::Errno(errno) => Err(from_errno(*errno)),
            Answered::Reply(reply) => {
                len = reply.body.len();
                call.takes(reply).map(|()| 0)
            }
        };
        its.side.took_answer(its.channel, id, len);
        result
    }

    /// Waits for the answer to a call. None if a signal came first.
    fn wait(&self, waiters: &WaitQueue, call: u64) -> Option<Answered> {
        let its = &self.its;
        let take = || its.side.take_answer(its.channel, call);
        match waiters.wait(None, take) {
            Ok(answer) => Some(answer),
            Err(_) => its.side.give_up_call(its.channel, call),
        }
    }
}

fn from_errno(errno: Errno) -> Error {
    // CAST: An errno is below 4096.
    Error::from_errno(-(errno.get() as i32))
}
