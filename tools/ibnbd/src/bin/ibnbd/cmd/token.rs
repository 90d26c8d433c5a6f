// SPDX-License-Identifier: GPL-2.0

//! `host add --token`: issues a token, and has somebody wait for the client that brings it.

use std::fs::{self, OpenOptions};
use std::io;
use std::net::IpAddr;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use ibnbd_host::configfs::Configured;
use ibnbd_host::family::Side;
use ibnbd_host::host;
use ibnbd_host::join::token::{Token, MOST_ADDRESSES};
use ibnbd_host::join::{address, pending, store};
use ibnbd_host::keyring;

use super::key;
use crate::act;
use crate::context::Context;
use crate::fail::{Failure, NOT_FOUND, REFUSED};

/// Where a server waits for clients with a token.
pub(crate) const PORT: u16 = 11235;
/// The service that does, where there is systemd.
const UNIT: &str = "ibnbd-join.service";
/// What it says elsewhere.
const LOG: &str = "/run/ibtrs/join.log";
/// How long it may take to listen.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long it waits before it starts what listens once more.
const AGAIN: Duration = Duration::from_secs(2);

/// A token for a host.
#[derive(Args, Debug)]
pub(crate) struct TokenWords {
    /// Prints a token, with which one client joins as this host: `ibnbd join TOKEN`. It can be used
    /// once, within an hour. The host may be there already; its client gets a new key
    #[arg(long)]
    pub(crate) token: bool,
    /// Addresses of this machine where clients find it to join, if not those of its RDMA devices
    #[arg(
        long,
        value_name = "ADDRESS,...",
        value_delimiter = ',',
        requires = "token"
    )]
    pub(crate) join_address: Vec<IpAddr>,
    /// The TCP port on which they do
    #[arg(long, value_name = "N", default_value_t = PORT, requires = "token", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) join_port: u16,
    /// With --token: also if the host is connected, whose present key the token replaces
    #[arg(short, long, requires = "token")]
    pub(crate) force: bool,
}

/// Fails if no client could use a token, before anything is changed.
pub(super) fn check(context: &Context, host: &str) -> Result<(), Failure> {
    let what = format!("cannot issue a token for host {host}");
    keyring::keys(&context.root).map_err(|error| key::failure(context, what.clone(), &error))?;
    if host::parameter(&context.root, "ibtrs_server", "auth").as_deref() == Some("none") {
        let why = "ibtrs_server has auth=none, and takes no keys";
        return Err(Failure::new(REFUSED, what, why).todo("load it with another auth"));
    }
    store::check(&context.root, host).map_err(|why| Failure::new(REFUSED, what, why))
}

/// Issues a token for a host that is there, and prints it.
pub(super) fn issue(context: &Context, host: &str, words: &TokenWords) -> Result<(), Failure> {
    let what = format!("cannot issue a token for host {host}");
    let configured = Configured::read(&context.root, &context.machine());
    let token = Token {
        host: host.to_owned(),
        addresses: addresses(context, &what, &configured, words)?,
        port: words.join_port,
        secret: key::random().map_err(|error| Failure::system(what.clone(), &error))?,
    };
    let failed = |error: io::Error| Failure::system(&*what, &error);
    let lock = pending::lock(&context.root).map_err(failed)?;
    pending::issue(&context.root, &token, &lock).map_err(failed)?;
    let nobody_waits = pending::listener(&context.root).map_err(failed)?.is_some();
    if nobody_waits {
        // Of one that has ended.
        pending::set_places(&context.root, [].iter()).map_err(failed)?;
    }
    // Who waits sees the token from now on.
    drop(lock);
    let waits = act::with_progress("listen for the client", || {
        if nobody_waits {
            start(context)?;
        }
        wait(context, &token)
    });
    if let Err(error) = waits {
        if let Ok(lock) = pending::lock(&context.root) {
            let _ = pending::withdraw(&context.root, host, &lock);
        }
        let failure = Failure::system(what, &error);
        return Err(failure.todo(format!("see `systemctl status {UNIT}`, or {LOG}")));
    }
    warn(context, &configured, host);
    context.say(&token.text())?;
    note!("on {host}, within an hour and once: ibnbd join TOKEN");
    Ok(())
}

fn addresses(
    context: &Context,
    what: &str,
    configured: &Configured,
    words: &TokenWords,
) -> Result<Vec<IpAddr>, Failure> {
    let place = address::place(&context.root, &configured.ports);
    let place = place.ok_or_else(|| {
        let why = "the server listens on no address of an RDMA device that others can reach";
        let failure = Failure::new(NOT_FOUND, what, why);
        failure.todo("see `rdma link`, `ip address` and `ibnbd port list`")
    })?;
    let mut found = words.join_address.clone();
    if found.is_empty() {
        found = address::for_tcp(&place);
    }
    found.truncate(MOST_ADDRESSES);
    if found.is_empty() {
        let why = "the RDMA devices have no IP address on which a client could join";
        let failure = Failure::new(NOT_FOUND, what, why);
        return Err(failure.todo("give one of this machine with --join-address"));
    }
    Ok(found)
}

/// Says what the first key changes for others.
fn warn(context: &Context, configured: &Configured, host: &str) {
    let root = &context.root;
    let has_keys = keyring::keys(root).is_ok_and(|keys| !keys.is_empty());
    let has_others = context.machine().ours(Side::Server).next().is_some()
        || host::parameter(root, "ibnbd_server", "dev_search_path")
            .is_some_and(|path| !path.is_empty())
        || (configured.exports.iter()).any(|export| {
            !export
                .allow_unauthenticated
                .as_deref()
                .unwrap_or_default()
                .is_empty()
        });
    let asks_for_keys = host::parameter(root, "ibtrs_server", "auth").as_deref() == Some("auto");
    if !has_keys && has_others && asks_for_keys {
        note!(
            "warning: once {host} has joined, clients without a key cannot connect any more, \
             unless ibtrs_server has auth=optional"
        );
    }
}

/// Starts what waits for clients: a service, or without systemd a process that goes on by itself.
fn start(context: &Context) -> io::Result<()> {
    let root = &context.root;
    if root.is_machine() && store::has_services(root) {
        // One that runs goes on: a client may be getting its key. Only the service is bounded by its unit.
        let status = Command::new("systemctl")
            .args(["--quiet", "start", UNIT])
            .stderr(Stdio::null())
            .status()?;
        return match status.success() {
            true => Ok(()),
            false => Err(io::Error::other("systemd cannot start it")),
        };
    }
    let log = root.real(LOG);
    // Of one that has ended.
    let _ = fs::remove_file(&log);
    let log = OpenOptions::new().append(true).create(true).open(log)?;
    Command::new(std::env::current_exe()?)
        .arg("--root")
        .arg(root.real("/"))
        .args(["host", "listen"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .map(drop)
}

/// Waits until it listens on each address.
fn wait(context: &Context, token: &Token) -> io::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    for address in &token.addresses {
        let place = (*address, token.port).into();
        let mut again = Instant::now() + AGAIN;
        while !pending::is_open(&context.root, &place) {
            if Instant::now() >= again {
                // The one that ran was at its end.
                start(context)?;
                again += AGAIN;
            }
            if Instant::now() >= deadline {
                let why = format!("nobody listens on {address} port {}", token.port);
                return Err(io::Error::other(why));
            }
            thread::sleep(Duration::from_millis(50));
        }
    }
    Ok(())
}
