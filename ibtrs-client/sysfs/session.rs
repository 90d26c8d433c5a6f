// SPDX-License-Identifier: GPL-2.0

//! The files of a session: `/sys/class/ibtrs-client/<session>/`.
//!
//! Contexts: *sysfs*.

use super::show;
use crate::session::Session;
use ibtrs_core::convert;
use ibtrs_proto::{
    addr::PathAddr,
    auth::{
        KeyError,
        KeyId, //
    },
    backoff::Attempts,
    consts::RETRY_COUNT,
    mp::Policy,
    settings::{
        self,
        Setting, //
    },
    text::{
        self,
        TextError, //
    },
    Errno, //
};
use kernel::{
    fmt,
    prelude::*,
    sync::Arc, //
};
use kx::sysfs::{
    Attr,
    Buf,
    StoreCtx, //
};

type Ctx<'a> = StoreCtx<'a, Arc<Session>>;

pub(super) static FILES: [Attr<Arc<Session>>; 18] = [
    Attr::rw(c"add_path", show_add_path, store_add_path),
    Attr::rw(
        c"max_reconnect_attempts",
        |session: &Session, buf| {
            let attempts = session.settings().max_reconnect_attempts();
            buf.line(fmt!("{}", attempts.number()))
        },
        |session, input| {
            let attempts = Attempts::parse(input);
            session.set_max_reconnect_attempts(attempts.map_err(|error| {
                refused(
                    &session,
                    "max_reconnect_attempts",
                    error,
                    fmt!("-1 to {}", Attempts::MAX),
                )
            })?);
            Ok(())
        },
    ),
    Attr::rw(
        c"key_id",
        |session: &Session, buf| buf.line(fmt!("{}", session.key_id().as_str())),
        store_key_id,
    ),
    Attr::rw(c"mp_policy", show_policy, store_policy),
    // The file's name in mainline.
    Attr::rw(c"mpath_policy", show_policy, store_policy),
    Attr::rw(
        c"failover_time_ms",
        |session: &Session, buf| buf.line(fmt!("{}", session.settings().failover_time_ms.get())),
        |session, input| {
            session.set_failover_time_ms(number(&session, &settings::FAILOVER_TIME_MS, input)?)
        },
    ),
    Attr::ro(c"failover_plan", show_plan),
    Attr::ro(c"last_failover", |session: &Session, buf| {
        match session.last_failover() {
            Some(told) => buf.write(fmt!("{}", told)),
            None => Ok(()),
        }
    }),
    Attr::ro(c"events", |session: &Session, buf| {
        session.show_history(buf)
    }),
    Attr::ro(c"outage", show_outage),
    Attr::ro(c"oldest_request_ms", |session: &Session, buf| {
        buf.line(fmt!("{}", session.oldest_request_ms()))
    }),
    Attr::rw(
        c"failover_times_ms",
        |session: &Session, buf| session.show_failover_times(|times| show(buf, times)),
        |session, input| {
            text::reset(input).map_err(|error| convert::error(error.errno()))?;
            session.reset_failover_times();
            Ok(())
        },
    ),
    Attr::rw(
        c"hb_interval_ms",
        |session: &Session, buf| buf.line(fmt!("{}", session.settings().hb_interval_ms.get())),
        |session, input| {
            session.set_hb_interval_ms(number(&session, &settings::HB_INTERVAL_MS, input)?)
        },
    ),
    Attr::rw(
        c"hb_missed_max",
        |session: &Session, buf| buf.line(fmt!("{}", session.settings().hb_missed_max.get())),
        |session, input| {
            session.set_hb_missed_max(number(&session, &settings::HB_MISSED_MAX, input)?)
        },
    ),
    Attr::rw(
        c"reconnect_delay_ms",
        |session: &Session, buf| buf.line(fmt!("{}", session.settings().reconnect_delay_ms.get())),
        |session, input| {
            session.set_reconnect_delay_ms(number(&session, &settings::RECONNECT_DELAY_MS, input)?)
        },
    ),
    Attr::rw(
        c"queue_timeout_s",
        |session: &Session, buf| {
            let value = session.settings().queue_timeout_s.get();
            buf.line(fmt!("{}", Setting::number(value)))
        },
        |session, input| {
            session
                .data()
                .set_queue_timeout_s(number(&session, &settings::QUEUE_TIMEOUT_S, input)?)
        },
    ),
    Attr::ro(
        c"server_back_in_s",
        |session: &Session, buf| match session.server_back_in_s() {
            Some(left_s) => buf.line(fmt!("{}", left_s)),
            None => buf.line(fmt!("")),
        },
    ),
    Attr::rw(
        c"reauth_interval_s",
        |session: &Session, buf| buf.line(fmt!("{}", session.settings().reauth_interval_s.get())),
        |session, input| {
            session.data().set_reauth_interval_s(number(
                &session,
                &settings::REAUTH_INTERVAL_S,
                input,
            )?)
        },
    ),
];

/// Logs why a number is refused; returns the error.
fn refused(session: &Session, file: &str, error: TextError, range: fmt::Arguments<'_>) -> Error {
    kx::pr_err_ratelimited!(
        "{}: {}: {}: {}\n",
        session.name(),
        file,
        error.as_str(),
        range
    );
    convert::error(error.errno())
}

fn number(session: &Session, setting: &Setting, input: &[u8]) -> Result<u32> {
    setting.parse(input).map_err(|error| {
        let off = match (setting.may_be_off, setting.may_be_unlimited) {
            (true, _) => "0, or ",
            (false, true) => "-1 for no limit, or ",
            (false, false) => "",
        };
        refused(
            session,
            setting.name,
            error,
            fmt!("{}{} to {}", off, setting.min, setting.max),
        )
    })
}

fn show_plan(session: &Session, buf: &mut Buf<'_>) -> Result {
    let plan = session.plan();
    let ack_timeout = match crate::param::ack_timeout.get() {
        0 => plan.ack_timeout.into(),
        exponent => exponent,
    };
    buf.line(fmt!("total_ms {}", plan.total_ms()))?;
    buf.line(fmt!("detect_ms {}", plan.detect_ms()))?;
    buf.line(fmt!("move_ms {}", plan.move_ms))?;
    buf.line(fmt!("hb_interval_ms {}", plan.hb_interval_ms))?;
    buf.line(fmt!("hb_missed_max {}", plan.hb_missed_max))?;
    buf.line(fmt!("ack_timeout {}", ack_timeout))?;
    buf.line(fmt!("retry_count {}", RETRY_COUNT))
}

fn show_outage(session: &Session, buf: &mut Buf<'_>) -> Result {
    let Some(outage) = session.outage() else {
        return Ok(());
    };
    let seconds = |ms: i64| (ms / 1000, ms % 1000);
    let (s, ms) = seconds(outage.since_ms);
    buf.line(fmt!("since {s}.{ms:03}"))?;
    match (outage.failing_since_ms, outage.left_ms) {
        (Some(at_ms), _) => {
            let (s, ms) = seconds(at_ms);
            buf.line(fmt!("fails_since {s}.{ms:03}"))
        }
        (None, Some(left_ms)) => buf.line(fmt!("fails_in_s {}", left_ms.div_ceil(1000))),
        (None, None) => Ok(()),
    }
}

fn show_policy(session: &Session, buf: &mut Buf<'_>) -> Result {
    buf.line(fmt!("{}", session.policy().sysfs_str()))
}

fn store_policy(session: Ctx<'_>, input: &[u8]) -> Result {
    let policy = Policy::parse(input).map_err(|error| {
        kx::pr_err_ratelimited!("{}: {}\n", session.name(), error.as_str());
        convert::error(error.errno())
    })?;
    session.set_policy(policy);
    Ok(())
}

fn store_key_id(session: Ctx<'_>, input: &[u8]) -> Result {
    let id = input.strip_suffix(b"\n").unwrap_or(input);
    let id = KeyId::new(id).ok_or_else(|| {
        let why = KeyError::Id.as_str();
        kx::pr_err_ratelimited!("{}: key_id: {}\n", session.name(), why);
        EINVAL
    })?;
    session.data().set_key_id(id);
    Ok(())
}

fn show_add_path(_session: &Session, buf: &mut Buf<'_>) -> Result {
    buf.line(fmt!("Usage: echo [<source>,]<destination> > add_path"))?;
    buf.line(fmt!(""))?;
    buf.line(fmt!(
        "source, destination ::= ip:<IPv4> | ip:<IPv6> | gid:<GID>"
    ))
}

fn store_add_path(session: Ctx<'_>, input: &[u8]) -> Result {
    let addr = PathAddr::parse_line(input).map_err(|error| {
        kx::pr_err_ratelimited!("{}: add_path: {}\n", session.name(), error.as_str());
        convert::error(Errno::EINVAL)
    })?;
    session.data().add_path_to(addr)
}
