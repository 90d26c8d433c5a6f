// SPDX-License-Identifier: GPL-2.0

//! Channels whose messages wait for others, by the time at which they wait no longer.
//!
//! That time may be shorter than a tick, so a high-resolution timer wakes the work item. The timer is started for the
//! channel that is first, and stays as it is if that sends earlier: then the work item finds nothing, and starts it for
//! the next one.

use kernel::{
    impl_has_hr_timer,
    sync::{
        Arc,
        ArcBorrow, //
    },
    time::{
        hrtimer::{
            ArcHrTimerHandle,
            HrTimerCallback,
            HrTimerCallbackContext,
            HrTimerPointer,
            HrTimerRestart,
            RelativeMode, //
        },
        Delta,
        Monotonic, //
    }, //
};

use super::{
    Session,
    Side,
    State, //
};
use crate::channel::{
    Place,
    Places, //
};

/// Channels that are looked at before others get the lock.
const PORTION: u32 = 256;

/// The channels of a session that wait.
pub(super) struct Gathering {
    places: Places,
    /// The timer, and when it runs.
    alarm: Option<(ArcHrTimerHandle<Session>, u64)>,
}

impl_has_hr_timer! {
    impl HasHrTimer<Session> for Session {
        mode: RelativeMode<Monotonic>, field: self.alarm
    }
}

impl HrTimerCallback for Session {
    type Pointer<'a> = Arc<Self>;

    fn run(
        this: ArcBorrow<'_, Self>,
        _context: HrTimerCallbackContext<'_, Self>,
    ) -> HrTimerRestart {
        this.more.enqueue(this.into());
        HrTimerRestart::NoRestart
    }
}

impl Gathering {
    /// No channels.
    pub(super) fn new() -> Self {
        Self {
            places: Places::new(),
            alarm: None,
        }
    }

    /// Stops the timer. It does not run any more, or waits for no lock.
    pub(super) fn stop(&mut self) -> Option<impl Drop> {
        self.alarm.take().map(|(alarm, _)| alarm)
    }
}

impl Side {
    /// Notes until when messages of a channel wait. Without memory, they do not.
    pub(super) fn gathers(&self, state: &mut State, id: u32, now: u64) {
        let State {
            chans, gathering, ..
        } = &mut *state;
        let Some(chan) = chans.get_mut(&id) else {
            return;
        };
        let until = chan.gather.until();
        if !gathering.places.set(id, &mut chan.waits, until) {
            chan.gather.release();
            state.list_ready(id);
        }
        self.start_alarm(state, now);
    }

    /// A channel is forgotten.
    pub(super) fn gathers_no_more(state: &mut State, id: u32, place: &mut Place) {
        let _ = state.gathering.places.set(id, place, None);
    }

    /// Has the timer run when the first channel waits no longer, or before.
    fn start_alarm(&self, state: &mut State, now: u64) {
        let Some((first, _)) = state.gathering.places.first() else {
            return;
        };
        let alarm = &mut state.gathering.alarm;
        if state.is_over || alarm.as_ref().is_some_and(|(_, at)| *at <= first) {
            return;
        }
        // Dropping the handle stops the timer, so that comes first.
        *alarm = None;
        let us = i64::try_from(first.saturating_sub(now)).unwrap_or(i64::MAX);
        *alarm = Some((self.0.clone().start(Delta::from_micros(us)), first));
    }

    /// Sends what has waited long enough. Returns whether it was at all such channels.
    pub(super) fn on_alarm(&self, state: &mut State, now: u64) -> bool {
        // Whether it has run is not asked: it is started for the first channel in any case.
        state.gathering.alarm = None;
        for _ in 0..PORTION {
            match state.gathering.places.first() {
                Some((at, id)) if at <= now => self.attend(state, id, now),
                _ => {
                    self.start_alarm(state, now);
                    return true;
                }
            }
        }
        false
    }
}
