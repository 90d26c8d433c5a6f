// SPDX-License-Identifier: GPL-2.0

//! Parsers of user input.

use ibnbd_proto::access::AccessMode;
use ibnbd_proto::checksum::DataChecksum;
use ibnbd_proto::grant;
use ibnbd_proto::identity;
use ibnbd_proto::map_opts::{MapOptions, UnmapMode};
use ibnbd_proto::path;
use ibnbd_proto::prefix::{self, Prefix};
use ibtrs_proto::addr::{Addr, PathAddr};
use ibtrs_proto::backoff::Attempts;
use ibtrs_proto::mp::Policy;
use ibtrs_proto::name::{DevicePath, SessionName};
use ibtrs_proto::opts::{Key, Options};
use ibtrs_proto::settings::Setting;
use ibtrs_proto::text;

fn str(bytes: &[u8]) -> &str {
    // Texts with a valid beginning.
    match core::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => core::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or(""),
    }
}

pub(crate) fn map_device(bytes: &[u8]) {
    match MapOptions::parse(bytes) {
        Ok(options) => {
            assert!(!options.session.name.as_str().is_empty());
            assert!(!options.device_path.as_str().is_empty());
            assert!(options.session.dest_port > 0 && options.nr_poll_queues >= -1);
            assert!(options.queues(4).is_none_or(|nr| (1..=4).contains(&nr)));
        }
        Err(error) => {
            assert!(error.errno().0 > 0);
            assert!(!error.to_string().is_empty());
        }
    }
    // Valid options before random values, so that the values are parsed.
    let mut line = b"sessname=s device_path=d path=".to_vec();
    line.extend(bytes);
    if let Ok(options) = MapOptions::parse(&line) {
        assert_eq!(options.session.name.as_str(), "s");
    }
    let _ = UnmapMode::parse(bytes);
}

pub(crate) fn paths(bytes: &[u8]) {
    let text = str(bytes);
    if let Ok(addr) = Addr::parse(text) {
        let again = addr.to_string();
        assert_eq!(Addr::parse(&again), Ok(addr), "{again}");
    }
    if let Ok(addr) = PathAddr::parse(text) {
        let again = addr.to_string();
        assert_eq!(PathAddr::parse(&again), Ok(addr), "{again}");
    }
    let _ = PathAddr::parse_line(bytes);
    for prefix in prefix::list(bytes).into_iter().flatten().flatten() {
        let again = prefix.to_string();
        assert_eq!(Prefix::parse(&again), Ok(prefix), "{again}");
    }
}

pub(crate) fn options(bytes: &[u8]) {
    const TABLE: [Key; 3] = [
        Key::required("a"),
        Key::optional("bc"),
        Key::repeatable("d", 3),
    ];
    match Options::parse(bytes, &TABLE) {
        Ok(options) => {
            assert!(options.get("a").is_some());
            assert!(options.count("bc") <= 1 && options.count("d") <= 3);
            assert_eq!(options.all("d").count(), options.count("d"));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

pub(crate) fn names(bytes: &[u8]) {
    if let Ok(name) = SessionName::new(bytes) {
        assert_eq!(name.as_bytes(), bytes);
    }
    let at = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    let (device, folder) = bytes.split_at(at);
    let Ok(device) = DevicePath::new(device) else {
        return;
    };
    let Ok(session) = SessionName::new(b"session") else {
        return;
    };
    let mut root = [0; path::PATH_MAX];
    if let Ok(root) = path::root(&mut root, str(folder.get(1..).unwrap_or(b"")), session) {
        let mut whole = [0; path::PATH_MAX];
        if let Ok(whole) = path::below(&mut whole, root, device) {
            let whole = whole.to_bytes();
            assert!(whole.starts_with(b"/") && !whole.ends_with(b"/"));
            assert!(whole.split(|b| *b == b'/').all(|part| part != b".."));
        }
    }
    let _ = identity::value(bytes);
    let name = grant::export_name(str(bytes));
    assert!(bytes.ends_with(name.as_bytes()) || bytes.len() > str(bytes).len());
    assert!(name.len() + 1 >= str(bytes).len());
}

pub(crate) fn numbers(bytes: &[u8]) {
    if let Ok(line) = text::line(bytes) {
        assert!(line.len() <= bytes.len());
    }
    if let Ok(n) = text::decimal(bytes, -5, 1 << 40) {
        assert!((-5..=1 << 40).contains(&n));
    }
    let _ = text::number(bytes);
    let _ = (text::one(bytes), text::reset(bytes));
    if let Ok(attempts) = Attempts::parse(bytes) {
        assert!((-1..=9999).contains(&attempts.number()));
    }
    for setting in Setting::ALL {
        if let Ok(n) = setting.parse(bytes) {
            assert!(setting.allows(n));
        }
    }
    if let Ok(policy) = Policy::parse(bytes) {
        assert_eq!(Policy::from_u8(policy.to_u8()), Some(policy));
    }
    let _ = AccessMode::parse(str(bytes));
    if let Ok(kind) = DataChecksum::parse(str(bytes)) {
        assert_eq!(kind.as_str(), str(bytes));
    }
}
