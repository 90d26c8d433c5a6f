// SPDX-License-Identifier: GPL-2.0

//! Times of the kernel, and as people read them.

use jiff::{tz::TimeZone, Timestamp, ZonedDateTime};

/// Reads seconds since 1970 with three decimals, in milliseconds.
pub fn parse(text: &str) -> Option<u64> {
    let (s, ms) = text.split_once('.').filter(|(_, ms)| ms.len() == 3)?;
    let (s, ms): (u64, u64) = (s.parse().ok()?, ms.parse().ok()?);
    s.checked_mul(1000)?.checked_add(ms)
}

/// Milliseconds since 1970.
pub fn now_ms() -> u64 {
    u64::try_from(Timestamp::now().as_millisecond()).unwrap_or(0)
}

/// The time of day of milliseconds since 1970, and the date unless that is today.
pub fn text(ms: u64) -> String {
    shown(ms, &ZonedDateTime::now())
}

/// The same at `now`, in its time zone.
fn shown(ms: u64, now: &ZonedDateTime) -> String {
    let zone = now.time_zone().clone();
    formatted(ms, zone, |at| match at.date() == now.date() {
        true => "%H:%M:%S",
        false => "%Y-%m-%d %H:%M:%S",
    })
}

/// The same in full, in UTC, for programs.
pub fn utc(ms: u64) -> String {
    formatted(ms, TimeZone::UTC, |_| "%Y-%m-%dT%H:%M:%SZ")
}

/// The time in a time zone; the number itself if that is too far away for a date.
fn formatted(ms: u64, zone: TimeZone, format: impl Fn(&ZonedDateTime) -> &'static str) -> String {
    let at = i64::try_from(ms)
        .ok()
        .and_then(|ms| Timestamp::from_millisecond(ms).ok())
        .map(|at| at.to_zoned_datetime(zone));
    at.map_or_else(|| ms.to_string(), |at| at.strftime(format(&at)).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_and_shown() {
        assert_eq!(parse("1764376027.042"), Some(1_764_376_027_042));
        for wrong in [
            "",
            "1",
            "1.",
            "1.0",
            "x.000",
            "1.abc",
            "99999999999999999999.000",
        ] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
        let now: ZonedDateTime = "2025-11-29T01:30:00+01:00[+01:00]".parse().unwrap();
        // In UTC it is the day before.
        assert_eq!(shown(1_764_376_027_042, &now), "01:27:07");
        assert_eq!(shown(1_764_276_027_042, &now), "2025-11-27 21:40:27");
        assert_eq!(utc(1_764_376_027_042), "2025-11-29T00:27:07Z");
        assert_eq!(utc(u64::MAX), u64::MAX.to_string());
    }
}
