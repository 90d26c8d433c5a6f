// SPDX-License-Identifier: GPL-2.0

//! `join`: turns a token of a server into a key that stays.

use std::fs;
use std::io::{self, IsTerminal, Read};
use std::net::{IpAddr, TcpStream};
use std::thread;
use std::time::Duration;

use clap::Args;
use ibnbd_host::family::Side;
use ibnbd_host::host;
use ibnbd_host::join::handshake::{self, JoinError, Limited, Place};
use ibnbd_host::join::joined::{self, Joined};
use ibnbd_host::join::store::{self, Kept};
use ibnbd_host::join::token::{self, Token};
use ibnbd_host::keyring;
use ibtrs_proto::auth::KeyId;

use super::{discover, key, modules, observe, Done};
use crate::act;
use crate::context::Context;
use crate::fail::{even_unread, Failure, NOT_FOUND, REFUSED};

pub(crate) const HELP: &str = "\
Makes a key with the server, keeps it so that it survives a reboot, and lists the exports that this
machine may map: ibnbd map NAME maps one, ibnbd map --all each of them. The token is worthless
afterwards. It is safer on standard input, as others see the words of a command while it runs.

Examples:
  ibnbd join ibtrs-token-1/web1/10.0.1.1/11235/...
  ibnbd join - <token";

#[derive(Args, Debug)]
pub(crate) struct JoinArgs {
    /// What `ibnbd host add HOST --token` has printed on the server; - reads it from standard input
    pub(crate) token: String,
    /// Also if this machine has joined another server under that name, which it then loses
    #[arg(short, long)]
    pub(crate) force: bool,
}

/// How long a connection to an address of the server may take.
const CONNECT: Duration = Duration::from_secs(5);
/// How long the server may take to make a key and keep it.
const ANSWER: Duration = Duration::from_secs(90);

pub(super) fn join(context: &Context, words: &JoinArgs) -> Done {
    let token = token(&words.token)?;
    let what = format!("cannot join as {}", token.host);
    modules::ready(context, Side::Client)?;
    check(context, &what, &token, words.force)?;
    let (stream, reached) = connect(&what, &token)?;
    let mut stream = Limited::new(stream, ANSWER);
    let name = host::name(&context.root);
    let made = act::with_progress("make a key with the server", || {
        handshake::join(&mut stream, &token.host, &token.secret, &name)
    });
    let (key, place) = made.map_err(|error| refused(&what, &token, error))?;
    let server = Joined::new(
        &token.host,
        &within_reach(place, &reached),
        &token.addresses,
    );
    keep(context, &what, &server, &key)?;
    let fingerprint = keyring::fingerprint(&key);
    drop(key);
    note!(
        "joined as {}; the fingerprint of the key is {fingerprint}",
        token.host
    );
    let found = discover::ask(context, &server.mapping())?;
    even_unread(discover::show(context, &server.session, found))?;
    Ok(0)
}

/// The token, from where the words say.
fn token(words: &str) -> Result<Token, Failure> {
    let mut text = words.to_owned();
    if words == "-" {
        if io::stdin().is_terminal() {
            note!("paste the token, then press Enter");
        }
        text = read_line().map_err(|error| Failure::system("standard input", &error))?;
    }
    Token::parse(&text).map_err(|error| {
        Failure::usage("token", error.as_str()).todo(
            "take the whole line that `ibnbd host add HOST --token` has printed on the server",
        )
    })
}

fn read_line() -> io::Result<String> {
    let mut text = String::new();
    let most = token::MOST as u64 + 1;
    io::BufRead::read_line(&mut io::BufReader::new(io::stdin().take(most)), &mut text)?;
    Ok(text)
}

/// Fails before the token is used up, if the key could not be kept, or would replace another one.
fn check(context: &Context, what: &str, token: &Token, force: bool) -> Result<(), Failure> {
    let root = &context.root;
    keyring::keys(root).map_err(|error| key::failure(context, what.to_owned(), &error))?;
    store::check(root, &token.host).map_err(|why| Failure::new(REFUSED, what, why))?;
    let file = |error: io::Error| Failure::system(joined::FILE, &error);
    let known = joined::all(root).map_err(file)?;
    let known = known.into_iter().find(|known| known.session == token.host);
    let is_at = |dst: &str| {
        let ip = dst.strip_prefix("ip:").and_then(|text| text.parse().ok());
        let is_known = known
            .as_ref()
            .is_some_and(|known| known.addresses.iter().any(|own| own == dst));
        is_known || ip.is_some_and(|ip| token.addresses.contains(&ip))
    };
    let machine = context.machine();
    let session = machine.our(Side::Client, &token.host);
    let mut ends = session
        .into_iter()
        .flat_map(|session| &session.paths)
        .filter_map(|path| path.dst.as_deref())
        .peekable();
    let leads_elsewhere = ends.peek().is_some() && !ends.any(is_at);
    let is_other = leads_elsewhere
        || known
            .as_ref()
            .is_some_and(|known| !known.is_at(&token.addresses));
    if is_other && !force {
        let why = format!(
            "the session {} leads to another server, and has one key",
            token.host
        );
        let failure = Failure::new(REFUSED, what, why);
        return Err(failure.todo(
            "have the token made for another host name: `ibnbd host add NAME --token`; or take --force, and lose the other server",
        ));
    }
    Ok(())
}

/// A connection to the first address that answers, and all that do.
fn connect(what: &str, token: &Token) -> Result<(TcpStream, Vec<IpAddr>), Failure> {
    let tries: Vec<_> = token
        .addresses
        .iter()
        .map(|address| {
            let place = (*address, token.port).into();
            (
                *address,
                thread::spawn(move || TcpStream::connect_timeout(&place, CONNECT)),
            )
        })
        .collect();
    let mut connected = None;
    let (mut reached, mut lost) = (Vec::new(), Vec::new());
    act::with_progress("connect to the server", || {
        for (address, tried) in tries {
            let tried = tried
                .join()
                .unwrap_or_else(|_| Err(io::ErrorKind::Other.into()));
            match tried {
                Ok(stream) => {
                    reached.push(address);
                    connected.get_or_insert(stream);
                }
                Err(error) => lost.push(format!("{address}: {error}")),
            }
        }
    });
    let Some(stream) = connected else {
        let failure = Failure::new(
            REFUSED,
            what,
            format!("no address answers: {}", lost.join("; ")),
        );
        return Err(failure.todo(format!(
            "check that TCP port {} passes firewalls, and that the token is less than an hour old and was not used: \
             nobody listens afterwards",
            token.port
        )));
    };
    for line in lost {
        note!("warning: no path over an address that this machine does not reach: {line}");
    }
    Ok((stream, reached))
}

/// Only the addresses that this machine reaches, if it joined by any of them.
fn within_reach(place: Place, reached: &[IpAddr]) -> Place {
    let is_reached = |text: &&String| {
        let ip = text.strip_prefix("ip:").and_then(|text| text.parse().ok());
        ip.is_some_and(|ip| reached.contains(&ip))
    };
    let addresses: Vec<String> = place.addresses.iter().filter(is_reached).cloned().collect();
    match addresses.is_empty() {
        true => place,
        false => Place { addresses, ..place },
    }
}

fn refused(what: &str, token: &Token, error: JoinError) -> Failure {
    let again = format!(
        "`ibnbd host add {} --token` on the server makes another one",
        token.host
    );
    let failure = Failure::new(REFUSED, what, error.to_string());
    match error {
        JoinError::Stranger => {
            let why = "the server does not know the token: it was used, its hour is over, or a newer one has replaced it";
            Failure::new(NOT_FOUND, what, why).todo(format!(
                "{again}; if you have not used it, somebody else has: remove that host's key there"
            ))
        }
        JoinError::Lost(_) | JoinError::Nonsense => {
            failure.todo(format!("the token may be used up: {again}"))
        }
        JoinError::Connection(_) => failure.todo("try it again"),
        JoinError::Refused(_) => failure.todo(again),
    }
}

/// Keeps the key and the server's addresses, now and for the next boot.
fn keep(
    context: &Context,
    what: &str,
    server: &Joined,
    key: &ibtrs_proto::auth::Key,
) -> Result<(), Failure> {
    let root = &context.root;
    let session = &server.session;
    let again = format!(
        "the token is used up: `ibnbd host add {session} --token` on the server makes another one"
    );
    let failed = |error: io::Error| Failure::system(what, &error).todo(&*again);
    let kept = store::keep(root, session, &KeyId::default(), key).map_err(failed)?;
    keyring::load(root, &KeyId::default(), session, key)
        .map_err(|error| self::key::failure(context, what.to_owned(), &error))?;
    let text = joined::with(root, server).map_err(failed)?;
    let file = root.real(joined::FILE);
    fs::create_dir_all(root.real(ibnbd_host::config::FOLDER)).map_err(failed)?;
    observe::replace(&file, &text)?;
    match kept {
        Kept::Credential(_) => {
            if let Err(error) = store::enable(root, session) {
                let unit = store::unit(session);
                note!("warning: cannot start {unit}, which loads the key at each boot: {error}");
            }
        }
        Kept::File(file) => {
            note!("the key is in {file}; without systemd nothing loads it at boot: ibnbd key load {session} --file {file}");
        }
    }
    Ok(())
}
