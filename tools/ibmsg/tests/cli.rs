// SPDX-License-Identifier: GPL-2.0

//! The command without the module, and with wrong words.

use assert_cmd::Command;

fn run(words: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::cargo_bin("ibmsg").expect("the command");
    let done = command
        .args(words)
        .write_stdin("")
        .output()
        .expect("its end");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (done.status.code(), text(&done.stdout), text(&done.stderr))
}

#[test]
fn without_the_module() {
    if std::path::Path::new(ibmsg::DEVICE).exists() {
        return;
    }
    for words in [
        &["portals"][..],
        &["channels"],
        &["show", "kv"],
        &["stat", "--count", "1"],
        &["listen", "kv"],
        &["serve", "kv", "true"],
        &["send", "local", "kv", "x"],
        &["call", "local", "kv", "x"],
        &["publish", "news", "x"],
        &["subscribe", "local", "news"],
    ] {
        let (code, out, error) = run(words);
        assert_eq!((code, out.as_str()), (Some(4), ""), "{error}");
        assert!(error.contains("the module ibmsg is not loaded"), "{error}");
        assert!(error.contains("remedy: modprobe ibmsg"), "{error}");
    }
    let (code, _, error) = run(&["--json", "channels"]);
    let document: serde_json::Value = serde_json::from_str(&error).expect("a document");
    assert_eq!((code, &document["errno"]), (Some(4), &serde_json::json!(2)));
}

#[test]
fn rules_without_the_module() {
    if std::path::Path::new("/sys/kernel/config/ibmsg").exists() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("rules.toml");
    let file = path.to_str().expect("a name");
    let apply = || run(&["rules", "apply", file, "--dry-run"]);
    assert_eq!(apply().0, Some(1));
    std::fs::write(&path, "[portal.kv]\nuser = [1]\n").expect("a file");
    let (code, _, error) = apply();
    assert_eq!(code, Some(1));
    assert!(error.contains("line 2, column 1"), "{error}");
    std::fs::write(&path, "[portal.kv]\nusers = [1]\n").expect("a file");
    for (code, _, error) in [apply(), run(&["rules", "show"])] {
        assert_eq!(code, Some(4));
        assert!(error.contains("remedy: modprobe ibmsg"), "{error}");
    }
}

#[test]
fn with_wrong_words() {
    for words in [&[][..], &["listen", "a/b"], &["send", "local"], &["exec"]] {
        assert_eq!(run(words).0, Some(2), "{words:?}");
    }
}

#[test]
fn pages_and_completions() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("man");
    let made = run(&["manpages", path.to_str().expect("a name")]);
    assert_eq!(made.0, Some(0), "{}", made.2);
    for page in [
        "ibmsg.1",
        "ibmsg-listen.1",
        "ibmsg-serve.1",
        "ibmsg-send.1",
        "ibmsg-call.1",
        "ibmsg-publish.1",
        "ibmsg-subscribe.1",
        "ibmsg-portals.1",
        "ibmsg-channels.1",
        "ibmsg-show.1",
        "ibmsg-stat.1",
    ] {
        assert!(path.join(page).exists(), "{page}");
    }
    for shell in ["bash", "zsh", "fish"] {
        assert!(run(&["completions", shell]).1.contains("listen"));
    }
}
