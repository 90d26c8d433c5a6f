// SPDX-License-Identifier: GPL-2.0

//! Deliberate mistakes, which the simulator must find.

/// A mistake of the driver around the state machines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    /// A message counts as acknowledged before it is in the program's queue.
    AckBeforeQueue,
    /// A message is released when it was posted, not when the peer has acknowledged it.
    ReleaseOnPost,
    /// The program is told at the completion of the SEND that its message was delivered.
    CompletionIsDelivery,
    /// A message whose time is over counts as not delivered although it was sent.
    SkipAfterSend,
    /// A message whose time is over leaves the queue though it has a number.
    ExpireWithoutSkip,
    /// SKIP does not say what the message had cost.
    SkipIsFree,
    /// Credits are added up, not set.
    AddCredits,
    /// Credits are renewed when a message has arrived, not when the program has taken it.
    EarlyCredits,
    /// The server follows RESUME though it is older than the latest move.
    OldResume,
    /// Pieces from a former connection count.
    KeepPieces,
    /// A call whose request was not acknowledged when the path was lost is made again.
    CallAgain,
    /// The callee may answer a request twice.
    AnswerTwice,
    /// The client does not say which connection attempts it has given up.
    NoLive,
    /// The server still takes frames from the attempts that the client has given up.
    NoFence,
    /// The same, and a record counts by whichever connection it comes.
    AnyConnection,
    /// Channels end while they are on their way by another connection.
    HastyLive,
    /// CLOSE is sent before all messages.
    EarlyEnd,
    /// A program's CLOSE is not sent any more once the peer's end has arrived.
    NoLateClose,
    /// The end of a channel is not answered.
    NoClosed,
    /// The client does not move a channel whose end it has got.
    SilentEnd,
    /// The server does not say in RESUMED that it has got the end of a channel.
    UnsaidEnd,
    /// Acknowledgements only travel with other frames.
    NoAckTimer,
    /// Credits in frames only travel with records.
    NoCreditFrames,
    /// A receiver that had no memory does not ask for the messages again.
    NoAgain,
    /// A channel that moves is not moved again when that connection is lost, too.
    MoveOnce,
    /// The server does not hear that a channel was moved from a connection that works.
    SilentRelocation,
    /// The client takes records of a channel that has come back to a connection before RESUMED.
    EarlyRecords,
    /// Channels that wait for their portal move to any connection, not to the one by which LIVE with `ends` is sent.
    OpeningAnywhere,
}

impl Bug {
    /// All of them.
    pub const ALL: [Bug; 28] = [
        Bug::AckBeforeQueue,
        Bug::ReleaseOnPost,
        Bug::CompletionIsDelivery,
        Bug::SkipAfterSend,
        Bug::ExpireWithoutSkip,
        Bug::SkipIsFree,
        Bug::AddCredits,
        Bug::EarlyCredits,
        Bug::OldResume,
        Bug::AnyConnection,
        Bug::KeepPieces,
        Bug::CallAgain,
        Bug::AnswerTwice,
        Bug::NoLive,
        Bug::NoFence,
        Bug::HastyLive,
        Bug::EarlyEnd,
        Bug::NoLateClose,
        Bug::NoClosed,
        Bug::SilentEnd,
        Bug::UnsaidEnd,
        Bug::NoAckTimer,
        Bug::NoCreditFrames,
        Bug::NoAgain,
        Bug::MoveOnce,
        Bug::SilentRelocation,
        Bug::EarlyRecords,
        Bug::OpeningAnywhere,
    ];
}
