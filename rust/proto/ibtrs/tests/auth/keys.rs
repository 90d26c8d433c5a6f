// SPDX-License-Identifier: GPL-2.0

//! Keys as text.

use super::*;
use proptest::prelude::*;

const TEXT: &[u8] = b"ibtrs-key-1:web1-2026:3333333333333333333333333333333333333333333333333333333333333333:ef471844";

#[test]
fn keys_are_read_and_written() {
    let (read, key) = Key::parse(TEXT).unwrap();
    assert_eq!((read, key.as_bytes()), (id(), &KEY));
    let mut buf = [0; KEY_TEXT_LEN];
    let len = key.write(&id(), &mut buf);
    assert_eq!(&buf[..len], TEXT);
    assert!(Key::parse(&[TEXT, b"\n"].concat()).is_ok());
    assert_eq!(format!("{key:?}"), "Key(..)");
    let longest = KeyId::new(&[b'k'; 32]).unwrap();
    let len = key.write(&longest, &mut buf);
    assert_eq!(len, KEY_TEXT_LEN);
    assert_eq!(Key::parse(&buf).unwrap().0, longest);
    assert!(KeyId::new(&[b'k'; 33]).is_none());
}

#[test]
fn the_default_id_is_one() {
    let id = KeyId::default();
    assert_eq!((KeyId::new(b"default"), id.as_str()), (Some(id), "default"));
}

#[test]
fn a_description_has_id_and_session() {
    let name = SessionName::new(b"web1").unwrap();
    let text = KeyId::default().description(name);
    assert!(text.starts_with(b"ibtrs:default:web1\0"));
    // The longest names leave room for the NUL.
    let (id, name) = ([b'k'; 32], [b's'; 254]);
    let text = KeyId::new(&id)
        .unwrap()
        .description(SessionName::new(&name).unwrap());
    assert_eq!(text[..], [&b"ibtrs:"[..], &id, b":", &name, b"\0"].concat());
}

#[test]
fn a_key_is_read_in_place() {
    let key = Key::read_with(|bytes| {
        *bytes = KEY;
        Ok::<_, ()>(())
    });
    assert_eq!(key.unwrap().as_bytes(), &KEY);
    assert_eq!(Key::read_with(|_| Err(5)).map(|_| ()), Err(5));
}

#[test]
fn a_damaged_key_is_refused() {
    let refused = |text: &[u8]| Key::parse(text).map(|_| ()).unwrap_err();
    assert_eq!(refused(b""), KeyError::Prefix);
    assert_eq!(refused(b"ibtrs-key-2:a:b:c"), KeyError::Prefix);
    assert_eq!(refused(b"ibtrs-key-1::00"), KeyError::Id);
    assert_eq!(refused(b"ibtrs-key-1:a b:00"), KeyError::Id);
    assert_eq!(refused(b"ibtrs-key-1:a:00"), KeyError::Digits);
    for len in 0..TEXT.len() {
        refused(&TEXT[..len]);
    }
    for at in 0..TEXT.len() {
        for with in *b"0aA:\n" {
            let mut text = TEXT.to_vec();
            if text[at] != with {
                text[at] = with;
                refused(&text);
            }
        }
    }
    refused(&[TEXT, b"0"].concat());
}

proptest! {
    #[test]
    fn any_text_is_taken_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..KEY_TEXT_LEN + 8)) {
        let _ = Key::parse(&bytes);
    }
}
