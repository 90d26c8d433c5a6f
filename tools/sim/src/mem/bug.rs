// SPDX-License-Identifier: GPL-2.0

//! Deliberate mistakes, which the simulator must find.

/// A mistake of the driver around the decisions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    /// The server answers RESUME before the former queue pair is drained.
    NoServerFence,
    /// The client sends RESUME before its own is.
    NoClientFence,
    /// Pages are given back when the peer has returned its keys, not when they are invalid.
    FreeBeforeInvalid,
    /// Keys are invalidated without asking the peer, though the owner waits.
    ImpatientUnmap,
    /// REVOKE is answered while WRITEs are under way.
    HastyReturn,
    /// REVOKE is not sent.
    NoRevoke,
    /// The owner does not compare the generation of a handle.
    AnyGeneration,
    /// The note is sent before the last WRITE.
    EarlyNote,
    /// A PUT is done for its program when its WRITEs have completed.
    CompletionIsDone,
    /// A PUT that failed half-way is reported as not done.
    TornIsNotDone,
    /// A failed PUT leaves the queue though its note has a number.
    NoSkip,
    /// A GET ends when its connection is lost, before its queue pair is drained.
    HastyGet,
    /// Keys of a lost connection are used on the next one.
    OldKeys,
    /// Pushes are not counted: memory is given back while the kernel reads it.
    UncountedPush,
    /// Keys of a lost connection count as valid for ever.
    ForgottenKeys,
    /// Every key allows writing, and neither side checks.
    NoRights,
    /// The receiver of a body releases it twice.
    ReleaseTwice,
    /// The receipt of a body comes while its memory is still in reach.
    EarlyReceipt,
    /// The slot of a body is used again before the receiver has released it.
    ReuseLent,
    /// A body is unmapped when its message is delivered.
    UnmapOnDelivery,
    /// A body whose message was never sent keeps its slot.
    ForgottenBody,
    /// A body of a message that is queued there and that the peer's program has not taken counts as one that it never had.
    QueuedIsUnsent,
    /// The asker does not keep to the number of keys.
    TooManyKeys,
    /// A channel leaves a connection that works while a GET or PUT is under way.
    HastyRelocation,
    /// The death of the owner leaves handles that nobody has used.
    DeathSparesIdle,
    /// Every key says that RDMA READ may be used.
    WrongReadable,
    /// The channel ends while a READ is under way.
    HastyClose,
}

impl Bug {
    /// All of them.
    pub const ALL: [Bug; 27] = [
        Bug::NoServerFence,
        Bug::NoClientFence,
        Bug::FreeBeforeInvalid,
        Bug::ImpatientUnmap,
        Bug::HastyReturn,
        Bug::NoRevoke,
        Bug::AnyGeneration,
        Bug::EarlyNote,
        Bug::CompletionIsDone,
        Bug::TornIsNotDone,
        Bug::NoSkip,
        Bug::HastyGet,
        Bug::OldKeys,
        Bug::UncountedPush,
        Bug::ForgottenKeys,
        Bug::NoRights,
        Bug::ReleaseTwice,
        Bug::EarlyReceipt,
        Bug::ReuseLent,
        Bug::UnmapOnDelivery,
        Bug::ForgottenBody,
        Bug::QueuedIsUnsent,
        Bug::TooManyKeys,
        Bug::HastyRelocation,
        Bug::DeathSparesIdle,
        Bug::WrongReadable,
        Bug::HastyClose,
    ];
}
