// SPDX-License-Identifier: GPL-2.0

//! Identities distinguish disks.

use ibnbd_proto::identity::{value, BadCheck, Difference, Identity, IdentityCheck, Wwid};
use ibnbd_proto::map_opts::{MapError, MapOptions};
use ibnbd_proto::msg::{Details, OpenRsp};
use ibtrs_proto::Errno;
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
    assert_eq!(before.same_disk(&before, false), Ok(()));
    assert_eq!(rsp(&[]).same_disk(&before, false), Ok(()));
    assert_eq!(before.same_disk(&rsp(&[]), false), Ok(()));
    let grown = OpenRsp {
        nsectors: 1001,
        device_id: 77,
        ..before
    };
    assert_eq!(grown.same_disk(&before, false), Ok(()));
    assert_eq!(
        before.same_disk(&grown, false),
        Ok(()),
        "it was made smaller"
    );
    let unknown = OpenRsp {
        identity: Identity::UNKNOWN,
        ..grown
    };
    assert_eq!(before.same_disk(&unknown, false), Err(Difference::Smaller));
    assert_eq!(
        rsp(&[b"disk 2"]).same_disk(&before, false),
        Err(Difference::Identity)
    );
    let logical = OpenRsp {
        logical_block_size: 4096,
        ..before
    };
    assert_eq!(
        logical.same_disk(&before, false),
        Err(Difference::BlockSize)
    );
    let physical = OpenRsp {
        physical_block_size: 512,
        ..before
    };
    assert_eq!(
        physical.same_disk(&before, false),
        Err(Difference::BlockSize)
    );
    // A number that makes no sense stands for the logical block size.
    let odd = OpenRsp {
        physical_block_size: 0,
        ..before
    };
    assert_eq!(odd.same_disk(&physical, false), Ok(()));
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

/// The answer of a server to OPEN of a disk with this identity and cache generation, 0 for none.
fn told(identity: u64, cache_run: u64) -> OpenRsp {
    let details = Details {
        physical_block_size: 4096,
        cache_run: Identity::from_wire(cache_run),
        ..Details::default()
    };
    OpenRsp {
        identity: Identity::from_wire(identity),
        details: Some(details),
        ..rsp(&[])
    }
}

/// A disk that is in use has to be proven the same, by its identity or by the server's word.
#[test]
fn proof() {
    let mainline = rsp(&[]);
    let unproven = Err(Difference::Unproven);
    for (before, now, expected) in [
        // The identity decides, whatever the server did.
        (told(7, 1), told(7, 2), Ok(())),
        (told(7, 1), told(8, 1), Err(Difference::Identity)),
        // The same boot and the same instance of the disk.
        (told(0, 1), told(0, 1), Ok(())),
        (told(7, 1), told(0, 1), Ok(())),
        (told(0, 1), told(7, 1), Ok(())),
        // Another boot, or another instance of the disk.
        (told(0, 1), told(0, 2), unproven),
        (told(7, 1), told(0, 2), unproven),
        (told(0, 1), told(7, 2), unproven),
        // A server that vouches for nothing any more.
        (told(0, 1), told(0, 0), unproven),
        (told(0, 1), mainline, unproven),
        (told(7, 1), mainline, unproven),
        (told(7, 0), told(0, 2), unproven),
        // One that never did.
        (mainline, mainline, Ok(())),
        (mainline, told(7, 2), Ok(())),
        (told(0, 0), told(0, 0), Ok(())),
    ] {
        assert_eq!(now.same_disk(&before, true), expected, "{before:?} {now:?}");
        let without = match expected {
            Err(Difference::Identity) => expected,
            _ => Ok(()),
        };
        assert_eq!(now.same_disk(&before, false), without, "{before:?} {now:?}");
    }
    // What can be compared still is.
    let smaller = OpenRsp {
        nsectors: 999,
        ..told(0, 1)
    };
    assert_eq!(
        smaller.same_disk(&told(0, 1), true),
        Err(Difference::Smaller)
    );
}

#[test]
fn checks() {
    use IdentityCheck::{Auto, None};
    assert_eq!(IdentityCheck::default(), Auto);
    assert!(Auto.wants_proof(true) && !Auto.wants_proof(false));
    assert!(!None.wants_proof(true) && !None.wants_proof(false));
    for check in IdentityCheck::ALL {
        assert_eq!(IdentityCheck::parse(check.as_str()), Ok(check));
        let line = format!("sessname=s device_path=d identity={}", check.as_str());
        assert_eq!(MapOptions::parse(line.as_bytes()).unwrap().identity, check);
    }
    let plain = MapOptions::parse(b"sessname=s device_path=d").unwrap();
    assert_eq!(plain.identity, Auto);
    for bad in ["", "NONE", "no", "auto ", "none\n"] {
        assert_eq!(IdentityCheck::parse(bad), Err(BadCheck), "{bad:?}");
    }
    let error = MapOptions::parse(b"sessname=s device_path=d identity=any").unwrap_err();
    assert_eq!(error, MapError::Identity("any"));
    assert_eq!(error.errno(), Errno::EINVAL);
    assert_eq!(error.as_str(), BadCheck.as_str());
    assert_eq!(BadCheck.errno(), Errno::EINVAL);
    assert_eq!(
        error.to_string(),
        "identity=any: identity is not auto or none"
    );
}

proptest! {
    /// A proof is never given by a server that has booted, unless the identities are known.
    #[test]
    fn proofs_need_evidence(ids in any::<[u8; 2]>(), runs in any::<[u8; 2]>()) {
        let [before, now] = [0, 1].map(|i| told((ids[i] % 3).into(), (runs[i] % 3).into()));
        let same = now.same_disk(&before, true).is_ok();
        let known = before.identity.is_known() && now.identity.is_known();
        if known {
            prop_assert_eq!(same, before.identity == now.identity);
        } else if before.identity.is_known() || before.cache_run().is_known() {
            let vouched = before.cache_run().is_known() && before.cache_run() == now.cache_run();
            prop_assert_eq!(same, vouched);
        } else {
            prop_assert!(same);
        }
        prop_assert!(!same || now.same_disk(&before, false).is_ok());
        // What was known of another disk is not said of this one.
        let after = now.identity_after(&before);
        prop_assert_eq!(after, if same { now.identity.or(before.identity) } else { now.identity });
    }
}
