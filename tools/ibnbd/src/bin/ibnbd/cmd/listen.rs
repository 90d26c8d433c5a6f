// SPDX-License-Identifier: GPL-2.0

//! `host listen`: waits for the clients that have a token, gives each its key, and ends with the last
//! token.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use ibnbd_host::configfs::{self, Configured};
use ibnbd_host::join::address;
use ibnbd_host::join::handshake::{Guest, JoinError, Knock, Limited, Place};
use ibnbd_host::join::pending::{self, Pending};
use ibnbd_host::join::store::{self, Kept};
use ibnbd_host::join::token::Token;
use ibnbd_host::keyring;
use ibnbd_host::model::Machine;
use ibnbd_host::Root;
use ibtrs_proto::auth::{Key, KeyId};

use super::{key, Done};
use crate::context::Context;
use crate::fail::Failure;
use crate::notify;

pub(crate) const HELP: &str = "\
`ibnbd host add HOST --token` starts it, as the service ibnbd-join where there is systemd. It ends when
all tokens were used or their time is over.

Example:
  ibnbd host listen";

/// How long a client may take, whatever it sends.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long it may take until the key is kept, with its encryption by a TPM. With the time before, it is less than
/// a client waits.
const ANSWER: Duration = Duration::from_secs(75);
/// How much of that may be a wait for another command that changes keys.
const TURN: Duration = Duration::from_secs(20);
/// How long the client may take to keep its key.
const KEPT: Duration = Duration::from_secs(120);
/// How often it looks for tokens.
const INTERVAL: Duration = Duration::from_millis(500);
/// Clients at a time, of which strangers may be all. One that comes too many is turned away.
const MOST_AT_ONCE: usize = 64;
/// Those of them from one address, so that a stranger cannot be all. A client needs one, and as many as it has
/// addresses to look which it reaches.
const MOST_OF_ONE: usize = 8;
const MOST_REFUSALS_LOGGED: usize = 200;

/// What the threads of the listener share.
struct Shared {
    root: Root,
    /// Clients that are attended to.
    active: Arc<Visitors>,
    /// Those of them that have proved a token, which they take out of use. The process goes on for them only.
    proved: Arc<AtomicUsize>,
    /// Refusals so far: strangers must not fill a log.
    refusals: AtomicUsize,
}

pub(super) fn listen(context: &Context) -> Done {
    let failed = |error: io::Error| Failure::system("cannot listen for clients", &error);
    let root = &context.root;
    let lock = pending::lock(root).map_err(failed)?;
    let Some(alone) = pending::listener(root).map_err(failed)? else {
        note!("another process listens already");
        ready(&mut false);
        return Ok(0);
    };
    pending::set_places(root, [].iter()).map_err(failed)?;
    drop(lock);
    // The terminal of the command that has started it may go. A service has none.
    let _ = rustix::process::setsid();
    let shared = Arc::new(Shared {
        root: root.clone(),
        active: Arc::default(),
        proved: Arc::default(),
        refusals: AtomicUsize::new(0),
    });
    let mut places = Places::default();
    let mut told = false;
    loop {
        let lock = pending::lock(root).map_err(failed)?;
        let tokens = pending::all(root, &lock).map_err(failed)?;
        if tokens.is_empty() && shared.proved.load(Ordering::Acquire) == 0 {
            // The next token that is issued starts another listener. Strangers are not waited for.
            ready(&mut told);
            drop(alone);
            drop(lock);
            return Ok(0);
        }
        drop(lock);
        places.listen(&shared, &tokens);
        ready(&mut told);
        thread::sleep(INTERVAL);
    }
}

/// Tells systemd once that it has begun.
fn ready(told: &mut bool) {
    if !core::mem::replace(told, true) {
        notify::ready("waits for clients with a token");
    }
}

/// Where it listens, and where it could not.
#[derive(Default)]
struct Places {
    open: BTreeSet<SocketAddr>,
    failed: BTreeSet<SocketAddr>,
}

impl Places {
    /// Listens where these tokens say, unless it does already.
    fn listen(&mut self, shared: &Arc<Shared>, tokens: &[Pending]) {
        for Pending { token, .. } in tokens {
            for address in &token.addresses {
                let place = SocketAddr::from((*address, token.port));
                if !self.open.contains(&place) {
                    self.open(shared, place);
                }
            }
        }
    }

    fn open(&mut self, shared: &Arc<Shared>, place: SocketAddr) {
        match TcpListener::bind(place) {
            Ok(listener) => {
                self.open.insert(place);
                if let Err(error) = pending::set_places(&shared.root, self.open.iter()) {
                    note!("cannot say that it listens on {place}: {error}");
                }
                let shared = Arc::clone(shared);
                thread::spawn(move || accept(&shared, &listener));
            }
            // The address may come.
            Err(error) if self.failed.insert(place) => note!("cannot listen on {place}: {error}"),
            Err(_) => {}
        }
    }
}

fn accept(shared: &Arc<Shared>, listener: &TcpListener) {
    loop {
        let Ok((stream, peer)) = listener.accept() else {
            // Too many files are open, for example.
            thread::sleep(Duration::from_millis(100));
            continue;
        };
        let peer = peer.ip().to_canonical();
        let Some(visit) = Visitors::enter(&shared.active, peer) else {
            continue;
        };
        let shared = Arc::clone(shared);
        // Without a thread the client is turned away.
        let _ = thread::Builder::new().spawn(move || {
            let _visit = visit;
            attend(&shared, stream, peer);
        });
    }
}

/// The clients that are attended to, by where they come from.
#[derive(Default)]
struct Visitors(Mutex<HashMap<IpAddr, usize>>);

/// Stands for a client that is attended to, as long as it lives.
struct Visit {
    active: Arc<Visitors>,
    from: IpAddr,
}

impl Visitors {
    /// Lets a client in, unless there are too many.
    fn enter(active: &Arc<Self>, peer: IpAddr) -> Option<Visit> {
        let from = source(peer);
        let mut counts = active.0.lock().unwrap_or_else(PoisonError::into_inner);
        if counts.values().sum::<usize>() >= MOST_AT_ONCE {
            return None;
        }
        let count = counts.entry(from).or_default();
        if *count >= MOST_OF_ONE {
            return None;
        }
        *count += 1;
        let active = Arc::clone(active);
        Some(Visit { active, from })
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        let counts = self.active.0.lock();
        let mut counts = counts.unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.from) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.from);
            }
        }
    }
}

/// What stands for the place that a client comes from: a machine may have all addresses of an IPv6 network of 64
/// bits.
fn source(peer: IpAddr) -> IpAddr {
    match peer {
        IpAddr::V4(_) => peer,
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
    }
}

/// Counts a client as long as it lives.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(count))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Why a client gets no key.
enum Refusal {
    /// It went before it sent anything, as the command does that looks whether we listen.
    Nothing,
    /// It has not proved a token.
    Stranger(String),
    /// It has proved one.
    Known(String, String),
}

impl From<JoinError> for Refusal {
    fn from(error: JoinError) -> Self {
        match error {
            JoinError::Connection(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Self::Nothing
            }
            error => Self::Stranger(error.to_string()),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("it sent nothing"),
            Self::Stranger(why) => f.write_str(why),
            Self::Known(host, why) => write!(f, "host {host}: {why}"),
        }
    }
}

fn attend(shared: &Shared, stream: TcpStream, peer: IpAddr) {
    let mut stream = Limited::new(stream, PATIENCE);
    let Err(refusal) = join(shared, &mut stream, peer) else {
        return;
    };
    let is_stranger = matches!(refusal, Refusal::Stranger(_));
    if matches!(refusal, Refusal::Nothing)
        || is_stranger && shared.refusals.fetch_add(1, Ordering::AcqRel) >= MOST_REFUSALS_LOGGED
    {
        return;
    }
    note!("{peer}: refused: {refusal}");
}

/// Gives a client that proves a token the key of its host.
fn join(shared: &Shared, stream: &mut Limited, peer: IpAddr) -> Result<(), Refusal> {
    let root = &shared.root;
    let knock = Knock::receive(stream)?;
    let system = |error: io::Error| Refusal::Stranger(error.to_string());
    let pending = {
        let lock = pending::lock(root).map_err(system)?;
        pending::of(root, knock.host(), &lock).map_err(system)?
    };
    let Some(pending) = pending else {
        // As with a wrong token, so that no stranger reads off a clock which hosts have one.
        let nothing = key::random().map_err(system)?;
        let _ = knock.answer(stream, &nothing);
        return Err(Refusal::Stranger("no token of its host is in use".into()));
    };
    let host = pending.token.host.clone();
    let guest = knock.answer(stream, &pending.token.secret)?;
    let refuse = |guest: Guest, stream: &mut Limited, why: &str| {
        // It may be gone.
        let _ = guest.refuse(stream, why);
        Refusal::Known(host.clone(), why.to_owned())
    };
    // Only now: strangers must not make the server read all of its configuration.
    let machine = Machine::read(root);
    let configured = Configured::read(root, &machine);
    if !may_come(&configured, &host, peer) {
        let why = "the host may not come from this address";
        return Err(refuse(guest, stream, why));
    }
    let place = address::place(root, &configured.ports);
    let Some(place) = place.filter(|_| configured.host(&host).is_some()) else {
        let why = "the server has no such host any more, or listens nowhere";
        return Err(refuse(guest, stream, why));
    };
    // The client has been quick; keeping a key may take long.
    stream.extend(ANSWER);
    // Before the token is out of use, after which the process may end.
    let _proved = Counted::new(&shared.proved);
    match make_key(root, &pending.token, &guest, stream) {
        Ok(made) => give_key(root, &host, made, guest, stream, &place, peer),
        Err(NotMade::Told(why)) => Err(refuse(guest, stream, why)),
        Err(NotMade::Kept(why)) => {
            let told = "the server cannot keep the key now, and its log has the reason; the token stays valid";
            let _ = guest.refuse(stream, told);
            Err(Refusal::Known(host, why))
        }
    }
}

/// Whether a host is there, and may have the address.
fn may_come(configured: &Configured, host: &str, peer: IpAddr) -> bool {
    let Some(host) = configured.host(host) else {
        // It is told why once it has proved the token.
        return true;
    };
    let allowed = host.addresses.as_deref().unwrap_or_default();
    allowed.is_empty() || allowed.iter().any(|prefix| prefix.has(peer))
}

fn give_key(
    root: &Root,
    host: &str,
    made: NewKey,
    mut guest: Guest,
    stream: &mut Limited,
    place: &Place,
    peer: IpAddr,
) -> Result<(), Refusal> {
    let NewKey {
        random,
        id,
        fingerprint,
        is_credential,
    } = made;
    let machine = guest.machine.clone();
    stream.extend(PATIENCE);
    let granted = guest.grant(stream, &random, &id, place);
    note!(
        "{peer} has joined as host {host}; the fingerprint of its key is {fingerprint}; it calls itself {machine}"
    );
    stream.extend(KEPT);
    match granted.and_then(|()| guest.wait_kept(stream)) {
        Ok(()) => settle(root, host, &id),
        Err(error) => note!(
            "{peer}: {machine} has not said that it keeps the key: {error}; former keys of host {host} stay; if it \
             cannot connect, ibnbd host add {host} --token gives it another key"
        ),
    }
    if is_credential {
        // The kernel has the key already.
        if let Err(error) = store::start(root, host) {
            let unit = store::unit(host);
            note!("cannot start {unit}, which loads the key at each boot: {error}");
        }
    }
    Ok(())
}

/// Has the former keys of a host go, as its client has the new one.
fn settle(root: &Root, host: &str, id: &KeyId) {
    let settled = match store::lock(root) {
        Ok(_lock) => store::settle(root, host, id),
        Err(error) => Err(error.to_string()),
    };
    match settled {
        Ok(former) if former.is_empty() => {}
        Ok(_) => note!("host {host}: its former key is not valid any more"),
        Err(why) => note!(
            "cannot remove the former key of host {host}: {why}; see ibnbd key list, and ibnbd key remove"
        ),
    }
    let others = keyring::keys(root).unwrap_or_default().into_iter();
    let others = others.filter(|key| key.session == host && key.id != id.as_str());
    for other in others {
        note!(
            "host {host} can still use the key {id}, which joining has not made: ibnbd key remove {host} --id {id}",
            id = other.id
        );
    }
}

/// A key that the server keeps, and that the client does not know yet.
struct NewKey {
    /// What the client makes it of.
    random: Key,
    id: KeyId,
    fingerprint: String,
    /// Whether a unit of systemd loads it at boot.
    is_credential: bool,
}

/// Why there is no key, and the token is as it was.
enum NotMade {
    /// The client may know the reason.
    Told(&'static str),
    /// It cannot be kept.
    Kept(String),
}

impl<E: ToString> From<E> for NotMade {
    fn from(error: E) -> Self {
        Self::Kept(error.to_string())
    }
}

/// Makes a key for a client, keeps it beside those that its host has, and takes the token out of use then: a key
/// that cannot be kept costs no token. Under the lock, so that of two clients with one token the first one gets a
/// key.
fn make_key(
    root: &Root,
    token: &Token,
    guest: &Guest,
    stream: &Limited,
) -> Result<NewKey, NotMade> {
    let host = &token.host;
    let (random, name) = (key::random()?, key::random()?);
    let key = guest.key(&random)?;
    let lock = store::lock_within(root, TURN)?;
    // `host remove` removes the host, its token and its keys under this lock, in that order. If another command has had
    // the lock for long, it takes it only for the keys.
    if !root.exists(&configfs::host_folder(host)) {
        return Err(NotMade::Told(
            "the host was removed while its client joined",
        ));
    }
    let used = NotMade::Told("the token was used, or replaced, at the same moment");
    if !pending::is_in_use(root, token)? {
        return Err(used);
    }
    let id = store::new_id(root, host, &name)?;
    let kept = store::add(root, host, id, &key)?;
    let is_credential = matches!(kept, Kept::Credential(_));
    // Before the client has it: it would be locked out by a reboot otherwise.
    if is_credential {
        if let Err(error) = store::enable(root, host) {
            let unit = store::unit(host);
            note!("cannot enable {unit}, which loads the key at each boot: {error}");
        }
    }
    let taken = match stream.is_open() {
        true => pending::take(root, token).map_err(NotMade::from),
        // Its operator has ended it, or it has waited too long.
        false => Err(NotMade::Kept(
            "the client has gone; its token stays valid".to_owned(),
        )),
    };
    let failed = match taken {
        Ok(true) => {
            let fingerprint = keyring::fingerprint(&key);
            return Ok(NewKey {
                random,
                id,
                fingerprint,
                is_credential,
            });
        }
        Ok(false) => used,
        Err(failed) => failed,
    };
    if let Err(why) = store::take_back(root, host, &id, &lock) {
        note!(
            "cannot remove the key {id} of host {host}, which nobody has: {why}",
            id = id.as_str()
        );
    }
    Err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_source_takes_all_places() {
        let active = Arc::default();
        let enter = |text: &str| Visitors::enter(&active, text.parse().unwrap());
        let mut own: Vec<Visit> = (0..MOST_OF_ONE)
            .map(|_| enter("10.0.1.9").unwrap())
            .collect();
        assert!(enter("10.0.1.9").is_none());
        let other = enter("10.0.1.2");
        assert!(other.is_some());
        own.pop();
        own.extend(enter("10.0.1.9"));
        assert_eq!(own.len(), MOST_OF_ONE);
        // All addresses of a network are one source.
        let six: Vec<_> = (0..MOST_OF_ONE + 1)
            .map(|n| enter(&format!("fd00::1:{n}")))
            .collect();
        assert_eq!(six.iter().flatten().count(), MOST_OF_ONE);
        assert!(enter("fd00:0:0:1::1").is_some());
        drop((own, other, six));
        let many: Vec<_> = (0..MOST_AT_ONCE + 1)
            .map(|n| enter(&format!("10.1.0.{n}")))
            .collect();
        assert_eq!(many.iter().flatten().count(), MOST_AT_ONCE);
        drop(many);
        assert!(active.0.lock().unwrap().is_empty());
    }
}
