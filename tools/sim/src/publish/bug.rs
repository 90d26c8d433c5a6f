// SPDX-License-Identifier: GPL-2.0

//! Deliberate mistakes, which the simulator must find.

/// A mistake of the driver around the decisions, or of a library for programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    /// Entries that the log has dropped are skipped without LOST.
    SilentLoss,
    /// LOST counts everything up to the next entry that will be published.
    LostToHead,
    /// The log drops entries that a subscriber needs, whatever the policy.
    NobodyIsSlow,
    /// Subscribers whose channel is on no connection do not count as slow.
    AdriftIsNotSlow,
    /// The publisher waits for slow subscribers, whatever the policy.
    AlwaysWait,
    /// Entries are put into the queue of a channel without credits.
    NoCredits,
    /// A publisher that waits is not woken when a subscriber has the entry.
    NoWake,
    /// It is not woken when the subscriber is gone.
    NoWakeOnLeave,
    /// A subscriber that waits for credits is not served when they come.
    NoServeOnCredits,
    /// Nor when its channel has moved.
    NoServeOnMove,
    /// A channel that moves sends entries that it has sent again as new ones.
    RepeatOnMove,
    /// A channel that loses its connection loses its subscriptions.
    ForgetOnMove,
    /// Logs after a restart of the publisher have the ids of those before.
    SameId,
    /// The content of an entry is released when the log drops it, though channels have it queued.
    EarlyRelease,
    /// An entry that one subscriber cannot take is published again to all.
    PublishAgain,
    /// ENDED has the position of the next entry that will be published.
    EndAtHead,
    /// A server does not forget the subscriptions of a client that was restarted.
    KeepDeadFeeds,
    /// Another subscription begins before ENDED has come.
    HastySubscribe,
    /// A program goes on behind what has arrived, not behind what it has read.
    RenewArrived,
    /// A program goes on at the last entry that it has read.
    RenewLast,
    /// A portal that is closed does not end its subscriptions.
    NoEndOnClose,
    /// An UNSUBSCRIBE that met an ENDED is an error.
    StrictUnsubscribe,
}

impl Bug {
    /// All of them.
    pub const ALL: [Bug; 22] = [
        Bug::SilentLoss,
        Bug::LostToHead,
        Bug::NobodyIsSlow,
        Bug::AdriftIsNotSlow,
        Bug::AlwaysWait,
        Bug::NoCredits,
        Bug::NoWake,
        Bug::NoWakeOnLeave,
        Bug::NoServeOnCredits,
        Bug::NoServeOnMove,
        Bug::RepeatOnMove,
        Bug::ForgetOnMove,
        Bug::SameId,
        Bug::EarlyRelease,
        Bug::PublishAgain,
        Bug::EndAtHead,
        Bug::KeepDeadFeeds,
        Bug::HastySubscribe,
        Bug::RenewArrived,
        Bug::RenewLast,
        Bug::NoEndOnClose,
        Bug::StrictUnsubscribe,
    ];
}
