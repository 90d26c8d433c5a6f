// SPDX-License-Identifier: GPL-2.0

//! Limits the log lines that clients cause, so that no client can suppress the lines of another.

use ibtrs_core::convert::Shown;
use ibtrs_proto::{
    addr::Addr,
    audit::{
        Entry,
        Limiters,
        Trust,
        SOURCES, //
    },
};
use kernel::{
    new_spinlock_irq,
    prelude::*,
    sync::{
        Arc,
        SpinLockIrq, //
    },
    time::{
        Instant,
        Monotonic, //
    },
};

/// The lines that clients have caused, by trust and source address.
#[pin_data]
pub(crate) struct Audit {
    #[pin]
    limiters: SpinLockIrq<Limiters<KVec<Entry>>>,
    since: Instant<Monotonic>,
}

impl Audit {
    pub(crate) fn new() -> Result<Arc<Self>> {
        let table = || KVec::from_elem(Entry::FREE, SOURCES, GFP_KERNEL);
        let limiters = Limiters::new([table()?, table()?, table()?]);
        Arc::pin_init(
            pin_init!(Self {
                limiters <- new_spinlock_irq!(limiters, "Audit::limiters"),
                since: Instant::now(),
            }),
            GFP_KERNEL,
        )
    }

    /// Returns whether to log a line that a client at `source` has caused. First logs how many
    /// lines were suppressed.
    ///
    /// # Context
    ///
    /// Any.
    pub(crate) fn may_log(&self, trust: Trust, source: &Addr) -> bool {
        let now_ms = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(0);
        let left_out = self.limiters.lock().line(trust, source, now_ms);
        let Some(left_out) = left_out else {
            return false;
        };
        match left_out.others {
            Some((Some(other), lines)) => {
                pr_info!("{}: lines left out: {}\n", Shown(other), lines);
            }
            Some((None, lines)) => pr_info!("lines of many addresses left out: {}\n", lines),
            None => {}
        }
        if left_out.own > 0 {
            pr_info!("{}: lines left out: {}\n", Shown(*source), left_out.own);
        }
        true
    }
}

/// The limits for the lines that the client of a session causes.
#[derive(Clone)]
pub struct ClientLog {
    audit: Arc<Audit>,
    trust: Trust,
}

impl ClientLog {
    pub(crate) fn new(audit: Arc<Audit>, authenticated: bool) -> Self {
        let trust = match authenticated {
            true => Trust::Authenticated,
            false => Trust::Connected,
        };
        Self { audit, trust }
    }

    /// Returns whether to log a line that the client has caused from the address `source`. First
    /// logs how many lines were suppressed.
    ///
    /// # Context
    ///
    /// Any.
    pub fn may_log(&self, source: &Addr) -> bool {
        self.audit.may_log(self.trust, source)
    }
}
