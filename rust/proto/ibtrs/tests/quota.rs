// SPDX-License-Identifier: GPL-2.0

//! Limits of the server on memory, connections and sessions.

use ibtrs_proto::errno::Errno;
use ibtrs_proto::quota::{
    has_room_for_session, is_known, Needs, Quota, QuotaRefusal, Standing, Taken, KNOWN_MS,
};
use proptest::prelude::*;

const QUOTA: Quota = Quota {
    bytes: 800,
    attempts: 3,
};

fn stranger(attempts: u32, begun: u64) -> Standing {
    Standing {
        attempts,
        begun,
        known: false,
    }
}

fn known(begun: u64) -> Standing {
    Standing {
        attempts: 0,
        begun,
        known: true,
    }
}

#[test]
fn so_many_paths_of_an_address_are_begun() {
    let needs = Needs {
        connections: 400,
        chunks: 300,
    };
    assert_eq!(QUOTA.begin(&stranger(2, 0), &needs), Ok(()));
    assert_eq!(
        QUOTA.begin(&stranger(3, 0), &needs),
        Err(QuotaRefusal::Attempts)
    );
    assert_eq!(QuotaRefusal::Attempts.errno(), Errno::EBUSY);
}

#[test]
fn a_path_that_never_fits_is_refused_as_such() {
    let needs = |connections, chunks| Needs {
        connections,
        chunks,
    };
    let begin = |from: Standing, needs| QUOTA.begin(&from, &needs);
    // More than all that a stranger may have; who is known has an eighth more.
    assert_eq!(begin(stranger(0, 0), needs(400, 300)), Ok(()));
    assert_eq!(
        begin(stranger(0, 0), needs(400, 301)),
        Err(QuotaRefusal::TooLarge)
    );
    assert_eq!(begin(known(0), needs(400, 400)), Ok(()));
    assert_eq!(
        begin(known(0), needs(400, 401)),
        Err(QuotaRefusal::TooLarge)
    );
    // Its connections are more than half, which nobody may have before a path is complete.
    assert_eq!(begin(known(0), needs(401, 0)), Err(QuotaRefusal::TooLarge));
    assert_eq!(
        begin(known(0), needs(u64::MAX, u64::MAX)),
        Err(QuotaRefusal::TooLarge)
    );
    // That comes before what time may change.
    assert_eq!(
        begin(stranger(3, 400), needs(401, 0)),
        Err(QuotaRefusal::TooLarge)
    );
    assert_eq!(QuotaRefusal::TooLarge.errno(), Errno::ENOMEM);
    assert!(QuotaRefusal::TooLarge
        .as_str()
        .contains("max_chunk_memory_mib"));
}

#[test]
fn the_last_eighth_is_for_those_who_are_known() {
    let taken = Taken { all: 600, begun: 0 };
    assert_eq!(QUOTA.complete(&taken, &stranger(0, 0), 100), Ok(()));
    assert_eq!(
        QUOTA.complete(&taken, &stranger(0, 0), 101),
        Err(QuotaRefusal::Memory)
    );
    assert_eq!(QUOTA.complete(&taken, &known(0), 200), Ok(()));
    assert_eq!(
        QUOTA.complete(&taken, &known(0), 201),
        Err(QuotaRefusal::Memory)
    );
    assert_eq!(
        QUOTA.complete(&taken, &known(0), u64::MAX),
        Err(QuotaRefusal::Memory)
    );
}

#[test]
fn the_last_sessions_are_for_those_who_are_known() {
    assert!(has_room_for_session(13, 16, false));
    assert!(!has_room_for_session(14, 16, false));
    assert!(has_room_for_session(15, 16, true));
    assert!(!has_room_for_session(16, 16, true));
    // Where there is no eighth, nothing is kept.
    assert!(has_room_for_session(0, 1, false));
    assert!(!has_room_for_session(1, 1, true));
}

#[test]
fn a_path_that_cannot_be_completed_is_refused_at_once() {
    let taken = Taken { all: 600, begun: 0 };
    assert_eq!(QUOTA.connect(&taken, &stranger(0, 0), 10, 90), Ok(()));
    assert_eq!(
        QUOTA.connect(&taken, &stranger(0, 0), 10, 91),
        Err(QuotaRefusal::Memory)
    );
}

#[test]
fn what_is_not_complete_takes_no_more_than_its_part() {
    let none = Taken::default();
    assert_eq!(QUOTA.connect(&none, &stranger(1, 390), 10, 0), Ok(()));
    assert_eq!(
        QUOTA.connect(&none, &stranger(1, 390), 11, 0),
        Err(QuotaRefusal::Begun)
    );
    assert_eq!(
        QUOTA.connect(&none, &known(390), 11, 0),
        Err(QuotaRefusal::Begun)
    );
    let much = Taken {
        all: 590,
        begun: 590,
    };
    assert_eq!(QUOTA.connect(&much, &stranger(0, 0), 10, 0), Ok(()));
    assert_eq!(
        QUOTA.connect(&much, &stranger(0, 0), 11, 0),
        Err(QuotaRefusal::AllBegun)
    );
    assert_eq!(QUOTA.connect(&much, &known(0), 11, 0), Ok(()));
}

#[test]
fn an_address_is_known_for_a_while() {
    assert!(is_known(0) && is_known(KNOWN_MS - 1));
    assert!(!is_known(KNOWN_MS) && !is_known(u64::MAX));
}

proptest! {
    /// A path that is begun comes up where nothing else is, whatever its size, so that its client
    /// does not try in vain for ever.
    #[test]
    fn what_is_begun_comes_up_alone(total in 0u64..1 << 45, cons in prop::collection::vec(0u64..1 << 42, 1..20), chunks in 0u64..1 << 45, is_known in any::<bool>()) {
        let quota = Quota { bytes: total, attempts: 1 };
        let mut from = Standing { known: is_known, ..Standing::default() };
        let connections = cons.iter().sum();
        if quota.begin(&from, &Needs { connections, chunks }).is_ok() {
            let mut taken = Taken::default();
            let mut later = connections + chunks;
            for bytes in cons {
                later -= bytes;
                prop_assert_eq!(quota.connect(&taken, &from, bytes, later), Ok(()));
                taken.all += bytes;
                taken.begun += bytes;
                from.begun += bytes;
            }
            prop_assert_eq!(quota.complete(&taken, &from, chunks), Ok(()));
        }
    }

    /// However many strangers begin and complete paths of whatever size: a client that is known
    /// gets the last eighth.
    #[test]
    fn strangers_leave_an_eighth(total in 0u64..1 << 45, asked in prop::collection::vec((any::<bool>(), 0u64..1 << 40), 0..100)) {
        let quota = Quota { bytes: total, attempts: 1 };
        let mut taken = Taken::default();
        for (connects, bytes) in asked {
            let from = stranger(0, 0);
            if connects && quota.connect(&taken, &from, bytes, 0).is_ok() {
                taken.begun += bytes;
                taken.all += bytes;
            } else if !connects && quota.complete(&taken, &from, bytes).is_ok() {
                taken.all += bytes;
            }
            prop_assert!(taken.begun <= total - total / 4);
        }
        prop_assert_eq!(quota.complete(&taken, &known(0), total / 8), Ok(()));
    }
}
