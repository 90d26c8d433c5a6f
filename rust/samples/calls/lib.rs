// SPDX-License-Identifier: GPL-2.0

//! The smallest user of `ibmsg`: it answers each request at the portal `portal=NAME` with its content. With
//! `connect=NAME`, it also makes `calls=NUMBER` calls to that portal, one after the other, while it is being loaded;
//! `session=NAME` says over which session.
//!
//! A sample, which is built for tests only.

#![deny(unsafe_code)]

use ibmsg::{
    Answer,
    Body,
    Channel,
    ChannelOptions,
    ChannelRef,
    Closed,
    ConnectOptions,
    HandlerContext,
    Offer,
    Portal,
    PortalOptions,
    Receiver,
    Reply,
    Request,
    Service,
    Unsent, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kx::sync::{
    Completion,
    SetOnce,
    TakeCell, //
};

const MESSAGE: &[u8] = b"hello";
/// Limit of the connection, and of each call.
const LIMIT_MS: u32 = 10_000;
/// The longest message of a client, and the most requests without an answer.
const MAX_MESSAGE: u32 = 4096;
const CALLS: u32 = 64;

#[allow(unsafe_code)]
mod param {
    //! The parameters of the module; the macro reaches into the loader.

    use kx::param::{
        BoolParam,
        IntParam,
        StringParam, //
    };

    kx::module_param! {
        /// The portal that is bound.
        pub(crate) portal: StringParam<64> = StringParam::new(""),
        "Name of the portal that answers requests with their content";

        /// Who may use it.
        pub(crate) unauthenticated: BoolParam = BoolParam::new(false),
        "The portal also answers machines that have not proved that they have a key (default: N)";

        /// The portal that is called.
        pub(crate) connect: StringParam<64> = StringParam::new(""),
        "Name of a portal that is called while the module is being loaded";

        /// The session with that.
        pub(crate) session: StringParam<64> = StringParam::new("local"),
        "Session over which that portal is called (default: local)";

        /// How often.
        pub(crate) calls: IntParam = IntParam::new(1, 1..=1_000_000),
        "How many calls are made, one after the other, 1 to 1000000 (default: 1)";
    }
}

module! {
    type: Module,
    name: "ibtrs_sample_calls",
    authors: ["The ibtrs authors"],
    description: "Sample: the smallest user of messages",
    license: "GPL",
}

/// Answers requests.
struct Echo;

impl Receiver for Echo {
    fn request(&self, channel: &ChannelRef, request: Request) {
        // There is room for the answer, see `terms`, and memory for one; but the channel may have been closed.
        if channel.reply(request.id, Ok(()), request.body).is_err() {
            channel.close();
        }
    }
}

impl Service for Echo {
    fn offered(&self, offer: &Offer<'_>) -> Result<Answer> {
        pr_info!("a channel of session {}\n", offer.session());
        Ok(Answer::accept(Arc::new(Echo, GFP_KERNEL)?))
    }
}

/// The terms of the portal's channels: with room for as many answers as there may be requests.
fn terms() -> ChannelOptions {
    ChannelOptions {
        max_message: MAX_MESSAGE,
        recv_calls: CALLS,
        send_msgs: CALLS,
        send_bytes: CALLS * (MAX_MESSAGE + 64),
        // The handler does not sleep.
        context: HandlerContext::Arrival,
        ..ChannelOptions::default()
    }
}

/// Makes calls.
#[pin_data]
struct Caller {
    failed: SetOnce<Error>,
    #[pin]
    is_done: Completion,
    /// A call that is to be made when there is room or memory: its number, and the message.
    delayed: TakeCell<(u64, Body)>,
}

impl Caller {
    /// Makes the call with a number, in a handler; those with lower numbers follow.
    fn call(&self, channel: &ChannelRef, number: u64, message: Body) {
        match channel.call(message, number, LIMIT_MS) {
            Ok(()) => {}
            // `room` is called after this handler.
            Err(Unsent {
                error: EAGAIN | ENOMEM,
                body,
            }) => drop(self.delayed.put((number, body))),
            Err(unsent) => self.ends(Err(unsent.error)),
        }
    }

    fn ends(&self, result: Result) {
        if let Err(error) = result {
            self.failed.populate(error);
        }
        self.is_done.complete_all();
    }
}

/// A message of the client, whose handlers may sleep.
fn message() -> Result<Body> {
    Body::copied(MESSAGE, GFP_KERNEL)
}

/// Whether the other end has sent the message back.
fn check(reply: &Reply) -> Result {
    reply.status?;
    let mut content = [0; MESSAGE.len()];
    let is_whole = reply.body.copy_out(0, &mut content);
    match is_whole && content == *MESSAGE {
        true => Ok(()),
        false => Err(EBADMSG),
    }
}

impl Receiver for Caller {
    fn reply(&self, channel: &ChannelRef, number: u64, reply: Result<Reply>) {
        let result = reply.and_then(|reply| check(&reply));
        match (result, number) {
            (Ok(()), 2..) => match message() {
                Ok(message) => self.call(channel, number - 1, message),
                Err(error) => self.ends(Err(error)),
            },
            (result, _) => self.ends(result),
        }
    }

    fn room(&self, channel: &ChannelRef) {
        if let Some((number, message)) = self.delayed.take() {
            self.call(channel, number, message);
        }
    }

    fn closed(&self, _channel: &ChannelRef, _closed: Closed) {
        self.ends(Err(ECONNRESET));
    }
}

/// Makes all calls.
fn call_all() -> Result {
    let caller = Arc::pin_init(
        pin_init!(Caller {
            failed: SetOnce::new(),
            is_done <- Completion::new(),
            delayed: TakeCell::empty(),
        }),
        GFP_KERNEL,
    )?;
    let options = ConnectOptions {
        timeout_ms: LIMIT_MS,
        ..ConnectOptions::default()
    };
    let (session, portal) = (param::session.get(), param::connect.get());
    let channel = Channel::connect(session, portal, &options, caller.clone())?;
    let calls = param::calls.get();
    channel.call(message()?, u64::from(calls), LIMIT_MS)?;
    caller.is_done.wait_killable()?;
    caller.failed.copy().map_or(Ok(()), Err)?;
    pr_info!("{} calls were answered\n", calls);
    // Dropping the channel closes it.
    Ok(())
}

struct Module {
    // Dropping it closes all channels, and waits for handlers.
    _portal: Option<Portal>,
}

impl kernel::Module for Module {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        let options = PortalOptions {
            channels: terms(),
            takes_unauthenticated: param::unauthenticated.get(),
            ..PortalOptions::default()
        };
        let portal = match param::portal.get() {
            [] => None,
            name => Some(Portal::bind(name, &options, Arc::new(Echo, GFP_KERNEL)?)?),
        };
        if !param::connect.get().is_empty() {
            call_all().inspect_err(|error| pr_info!("calls failed: {}\n", error.to_errno()))?;
        }
        Ok(Self { _portal: portal })
    }
}
