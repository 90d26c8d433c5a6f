// SPDX-License-Identifier: GPL-2.0

//! `join`: turns a token of a server into a key that stays.

use std::fs;
use std::io::{self, BufRead, IsTerminal, Read};
use std::net::{IpAddr, TcpStream};
use std::thread;
use std::time::Duration;

use clap::Args;
use ibnbd_host::config::{self, plan};
use ibnbd_host::family::Side;
use ibnbd_host::host;
use ibnbd_host::join::handshake::{self, Given, JoinError, Limited, Place};
use ibnbd_host::join::joined::{self, Joined};
use ibnbd_host::join::store::{self, Kept, Lock};
use ibnbd_host::join::token::{self, Token};
use ibnbd_host::keyring;
use zeroize::Zeroizing;

use super::{change, discover, key, modules, observe, Done};
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
/// How long the server may take to notice that connections are closed.
const SETTLE: Duration = Duration::from_millis(100);
/// How long the server may take to make a key and keep it.
const ANSWER: Duration = Duration::from_secs(90);
/// How long it may take to tell the server that the key is kept.
const KEPT: Duration = Duration::from_secs(10);

pub(super) fn join(context: &Context, words: &JoinArgs) -> Done {
    let token = token(&words.token)?;
    let what = format!("cannot join as {}", token.host);
    modules::ready(context, Side::Client)?;
    // Two that join come one after the other, each with what the one before has left.
    let _turn = key::turn_to_join(context, &what)?;
    // Another command that keeps this one waiting must not cost the token. But not until the key is kept: the
    // server may be this machine, or wait for a server that this machine is.
    let lock = key::turn(context, &what)?;
    check(context, &what, &token, words.force)?;
    drop(lock);
    let (stream, reached) = connect(&what, &token)?;
    let mut stream = Limited::new(stream, ANSWER);
    let name = host::name(&context.root);
    let made = act::with_progress("make a key with the server", || {
        handshake::join(&mut stream, &token.host, &token.secret, &name)
    });
    let given = made.map_err(|error| refused(&what, &token, error))?;
    let place = within_reach(given.place.clone(), &reached);
    let server = Joined::new(&token.host, &given.id, &place, &token.addresses);
    let lock = key::turn(context, &what).map_err(|failure| failure.todo(used_up(&token.host)))?;
    let kept = keep(context, &what, &server, &given, &lock)?;
    drop(lock);
    let fingerprint = keyring::fingerprint(&given.key);
    stream.extend(KEPT);
    if let Err(error) = given.kept(&mut stream) {
        note!("warning: the server does not know that this machine keeps the key: {error}; a former key stays valid there");
    }
    note!(
        "joined as {}; the fingerprint of the key is {fingerprint}",
        token.host
    );
    at_boot(context, &token.host, &kept);
    let mut session = server.mapping();
    if context
        .machine()
        .our(Side::Client, &session.session)
        .is_some()
    {
        // It has the key by now.
        session.key_id = None;
    }
    let found = discover::ask(context, &session)?;
    even_unread(discover::show(context, &server.session, found))?;
    Ok(0)
}

/// The token, from where the words say.
fn token(words: &str) -> Result<Token, Failure> {
    let mut text = Zeroizing::new(words.to_owned());
    if words == "-" {
        if io::stdin().is_terminal() {
            note!("paste the token, then press Enter");
        }
        *text = read_line().map_err(|error| Failure::system("standard input", &error))?;
    }
    Token::parse(&text).map_err(|error| {
        Failure::usage("token", error.as_str()).todo(
            "take the whole line that `ibnbd host add HOST --token` has printed on the server",
        )
    })
}

fn read_line() -> io::Result<String> {
    // With room for all: a text that grows leaves copies behind.
    let mut text = String::with_capacity(token::MOST + 1);
    let most = token::MOST as u64 + 1;
    io::stdin().lock().take(most).read_line(&mut text)?;
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

/// A connection to the first address that answers, and all that do. The connections that show that are closed
/// before: the server takes only a few of one client.
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
    let (mut reached, mut lost) = (Vec::new(), Vec::new());
    act::with_progress("connect to the server", || {
        for (address, tried) in tries {
            let tried = tried
                .join()
                .unwrap_or_else(|_| Err(io::ErrorKind::Other.into()));
            match tried {
                Ok(_) => reached.push(address),
                Err(error) => lost.push(format!("{address}: {error}")),
            }
        }
    });
    let Some(first) = reached.first() else {
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
    thread::sleep(SETTLE);
    let stream = TcpStream::connect_timeout(&(*first, token.port).into(), CONNECT)
        .map_err(|error| Failure::system(what, &error).todo("try it again"))?;
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

/// The files may name a key that the session had before.
fn warn_of_files(context: &Context, session: &str, id: &str) {
    let files = config::files(&context.root, config::FOLDER);
    // Commands that apply them report what is wrong with them.
    let Some(Ok(config)) = files.ok().map(|files| config::read(&files)) else {
        return;
    };
    let names_other = |own: &&config::Session| {
        let is_it = plan::name(&context.root, own) == session;
        is_it && (own.settings.iter()).any(|(key, value)| key == "key_id" && value != id)
    };
    if config.sessions.iter().find(names_other).is_some() {
        let folder = config::FOLDER;
        note!("warning: a file in {folder} has another key_id of session {session}: take it out, or write {id}");
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
                "{again}; if you have not used it, somebody else has: remove that host's key there. If many clients \
                 join at the same time, try it again"
            ))
        }
        JoinError::Lost(_) | JoinError::Nonsense => {
            failure.todo(format!("the token may be used up: {again}"))
        }
        JoinError::Connection(_) => failure.todo("try it again"),
        JoinError::Refused(_) => failure.todo(format!(
            "mend that there, and join again with this token, or if it was used: {again}"
        )),
    }
}

fn used_up(session: &str) -> String {
    format!(
        "the token is used up: `ibnbd host add {session} --token` on the server makes another one"
    )
}

/// Keeps the key and the server's addresses, now and for the next boot.
fn keep(
    context: &Context,
    what: &str,
    server: &Joined,
    given: &Given,
    _lock: &Lock,
) -> Result<Kept, Failure> {
    let root = &context.root;
    let session = &server.session;
    let words = |why: String| Failure::new(REFUSED, what, why);
    let again = used_up(session);
    let failed = |error: io::Error| Failure::system(what, &error).todo(&*again);
    // The former key stays until everything leads to this one: the server takes both.
    let kept =
        store::add(root, session, given.id, &given.key).map_err(|why| words(why).todo(&*again))?;
    // Whatever fails below: the key counts by now, and a boot has to load it.
    if let Kept::Credential(_) = kept {
        if let Err(error) = store::enable(root, session) {
            let unit = store::unit(session);
            note!("warning: cannot enable {unit}, which loads the key at each boot: {error}");
        }
    }
    let text = joined::with(root, server).map_err(failed)?;
    let file = root.real(joined::FILE);
    fs::create_dir_all(root.real(ibnbd_host::config::FOLDER)).map_err(failed)?;
    observe::replace(&file, &text)?;
    if let Some(live) = context.machine().our(Side::Client, session) {
        change::write(
            context,
            session,
            &live.folder(),
            "key_id",
            given.id.as_str(),
        )?;
    }
    // The new one counts, and the server has to learn that it is kept.
    if let Err(why) = store::settle(root, session, &given.id) {
        note!(
            "warning: a former key of session {session} stays on this machine: {why}; see `ibnbd key list`, and \
             `ibnbd key remove {session} --id ID`"
        );
    }
    warn_of_files(context, session, given.id.as_str());
    Ok(kept)
}

/// Says what the next boot does, and has systemd's unit know the key.
fn at_boot(context: &Context, session: &str, kept: &Kept) {
    match kept {
        Kept::Credential(_) => {
            if let Err(error) = store::start(&context.root, session) {
                let unit = store::unit(session);
                note!("warning: cannot start {unit}, which loads the key at each boot: {error}");
            }
        }
        Kept::File(file) => {
            note!("the key is in {file}; without systemd nothing loads it at boot: ibnbd key load {session} --file {file}");
        }
    }
}
