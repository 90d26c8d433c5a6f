// SPDX-License-Identifier: GPL-2.0

//! Identities distinguish disks.

use ibnbd_proto::identity::{value, Difference, Identity, Wwid};
use ibnbd_proto::msg::OpenRsp;
use proptest::prelude::*;

#[test]
fn unknown() {
    assert_eq!(Identity::of(&[]), Identity::UNKNOWN);
    assert_eq!(Identity::of(&[b"", b""]), Identity::UNKNOWN);
    assert_eq!(Identity::default(), Identity::UNKNOWN);
    assert!(!Identity::UNKNOWN.is_known());
    let known = Identity::of(&[b"x"]);
    assert!(known.is_known());
    assert!(Identity::UNKNOWN.may_be(known) && known.may_be(Identity::UNKNOWN));
    assert_eq!(Identity::UNKNOWN.or(known), known);
    assert_eq!(known.or(Identity::of(&[b"y"])), known);
}

/// A server of another version has to come to the same number.
#[test]
fn golden() {
    let of = |names: &[&[u8]]| Identity::of(names).to_wire();
    assert_eq!(of(&[b"a"]), 0x529A_4DDC_8FF5_6BBF);
    assert_eq!(of(&[b"", b"2f2c3a8e-01"]), 0x96D5_2ABB_443F_B79A);
}

#[test]
fn attributes() {
    assert_eq!(value(b"LVM-x0\n"), Some(&b"LVM-x0"[..]));
    assert_eq!(value(b" 0a "), Some(&b"0a"[..]));
    for nothing in [
        "",
        "\n",
        "0",
        "00000000-0000-0000-0000-000000000000\n",
        "0 0",
        "  ",
    ] {
        assert_eq!(value(nothing.as_bytes()), None, "{nothing:?}");
    }
}

#[test]
fn wwids() {
    let text = |identity: u64, device: &str| {
        let identity = Identity::from_wire(identity);
        let session = "host1";
        Wwid {
            identity,
            session,
            device,
        }
        .to_string()
    };
    assert_eq!(
        text(0xABC, "/dev/sda"),
        "ibnbd-host1-dev-sda-0000000000000abc"
    );
    assert_eq!(text(0, "/dev/vg/lv"), "ibnbd-host1-dev-vg-lv");
    assert_eq!(text(0, "sda"), "ibnbd-host1-sda");
}

#[test]
fn borders_of_names_count() {
    assert_ne!(Identity::of(&[b"ab", b"c"]), Identity::of(&[b"a", b"bc"]));
    assert_ne!(Identity::of(&[b"a", b""]), Identity::of(&[b"", b"a"]));
}

fn rsp(names: &[&[u8]]) -> OpenRsp {
    OpenRsp {
        nsectors: 1000,
        logical_block_size: 512,
        physical_block_size: 4096,
        identity: Identity::of(names),
        ..OpenRsp::default()
    }
}

#[test]
fn same_disk() {
    let before = rsp(&[b"disk 1"]);
    assert_eq!(before.same_disk(&before), Ok(()));
    assert_eq!(rsp(&[]).same_disk(&before), Ok(()));
    assert_eq!(before.same_disk(&rsp(&[])), Ok(()));
    let grown = OpenRsp {
        nsectors: 1001,
        device_id: 77,
        ..before
    };
    assert_eq!(grown.same_disk(&before), Ok(()));
    assert_eq!(before.same_disk(&grown), Ok(()), "it was made smaller");
    let unknown = OpenRsp {
        identity: Identity::UNKNOWN,
        ..grown
    };
    assert_eq!(before.same_disk(&unknown), Err(Difference::Smaller));
    assert_eq!(
        rsp(&[b"disk 2"]).same_disk(&before),
        Err(Difference::Identity)
    );
    let logical = OpenRsp {
        logical_block_size: 4096,
        ..before
    };
    assert_eq!(logical.same_disk(&before), Err(Difference::BlockSize));
    let physical = OpenRsp {
        physical_block_size: 512,
        ..before
    };
    assert_eq!(physical.same_disk(&before), Err(Difference::BlockSize));
    // A number that makes no sense stands for the logical block size.
    let odd = OpenRsp {
        physical_block_size: 0,
        ..before
    };
    assert_eq!(odd.same_disk(&physical), Ok(()));
}

proptest! {
    #[test]
    fn disks_differ(a in "[ -~]{1,40}", b in "[ -~]{1,40}") {
        let (x, y) = (Identity::of(&[a.as_bytes()]), Identity::of(&[b.as_bytes()]));
        prop_assert!(x.is_known());
        prop_assert_eq!(x.may_be(y), a == b);
        prop_assert_eq!(Identity::from_wire(x.to_wire()), x);
    }
}
