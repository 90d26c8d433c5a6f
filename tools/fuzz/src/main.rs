// SPDX-License-Identifier: GPL-2.0

//! Coverage-guided fuzzing of all code that needs no kernel.
//!
//! The first byte of an input selects the target, which gets the other bytes. An input that fails
//! is saved as `crash-...` in the folder of `scripts/fuzz-host.sh`; give it to the program as its
//! argument to reproduce the failure.

#![no_main]

mod auth;
mod logic;
mod messages;
mod parsers;
mod publish;
mod wire;

/// The target that takes the bytes.
const TARGETS: [fn(&[u8]); 27] = [
    wire::handshake,
    wire::messages,
    wire::requests,
    wire::immediates,
    wire::user_messages,
    wire::io,
    parsers::map_device,
    parsers::paths,
    parsers::options,
    parsers::names,
    parsers::numbers,
    logic::client_path,
    logic::server_path,
    logic::failover,
    logic::owner,
    logic::small,
    auth::messages,
    auth::exchange,
    wire::discover,
    wire::checksums,
    messages::frames,
    messages::halves,
    messages::channel,
    messages::memory,
    publish::contents,
    publish::subscriptions,
    messages::bodies,
];

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Some((which, bytes)) = bytes.split_first() {
        TARGETS[usize::from(*which) % TARGETS.len()](bytes);
    }
});
