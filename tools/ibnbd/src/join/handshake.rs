// SPDX-License-Identifier: GPL-2.0

//! The messages by which a client and a server make a key of a token.
//!
//! It is the pattern `NNpsk0` of the Noise protocol framework, with the token's secret as the shared
//! key: both ends make an X25519 key for this conversation only, and prove by each message that they
//! know the secret. Who records the conversation and learns the token later cannot read it.
//!
//! ```text
//! client                                server
//!   "ibtrs-join-1" and the host's name ->       in the clear, and part of what is proved
//!   psk, e                             ->       proves the token
//!                                      <- e, ee proves the token
//!   Hello                              ->       encrypted: the client is there now, and no replay
//!                                      <-       encrypted: Answer
//!   Kept                               ->       encrypted: the client has the key on its disk
//! ```
//!
//! After `Hello` the server keeps the key, then takes the token out of use, and answers: a key that cannot be kept
//! costs no token. The keys that the host had before go only after `Kept`: wherever the connection is lost, the
//! client has a key that the server takes. If it joins for the first time, and has none yet, it needs another
//! token. The key that stays is HMAC-SHA256 over the hash of the conversation, with random bytes of `Answer` as its
//! key. So somebody who has the token and stands between the two ends has a different key with each of them.
//!
//! Each message follows its length in two bytes, most significant first.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use hmac::{Hmac, Mac};
use ibtrs_proto::addr::Addr;
use ibtrs_proto::auth::{Key, KeyId, KEY_LEN};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use snow::{Builder, HandshakeState, TransportState};
use zeroize::{Zeroize, Zeroizing};

use super::token::{hex, key, MOST_ADDRESSES};

const GREETING: &str = "ibtrs-join-1";
const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_SHA256";
const KEY_OF: &[u8] = b"ibtrs join 1: key";
/// Most bytes of a message.
const MOST: usize = 8192;
/// Bytes that encryption adds.
const TAG: usize = 16;
/// Most characters of a text of the other end that people read.
const MOST_SHOWN: usize = 200;
/// The most characters of the name of a machine.
const MOST_OF_MACHINE: usize = 64;

/// Why the ends do not agree.
#[derive(Debug)]
pub enum JoinError {
    /// The connection failed before anything was proved.
    Connection(io::Error),
    /// The other end does not know the token, or speaks another protocol.
    Stranger,
    /// The connection failed when the server may have taken the token out of use.
    Lost(io::Error),
    /// The other end has proved the token, and what it says makes no sense.
    Nonsense,
    /// The server has proved the token, and refuses.
    Refused(String),
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connection(error) => error.fmt(f),
            Self::Stranger => f.write_str("the other end does not know the token"),
            Self::Lost(error) => write!(f, "the connection ended early: {error}"),
            Self::Nonsense => f.write_str("a message of the other end makes no sense"),
            Self::Refused(why) => f.write_str(why),
        }
    }
}

/// What a client says of itself.
#[derive(Serialize, Deserialize)]
struct Hello {
    machine: String,
}

/// What a server answers to a client that has proved the token.
#[derive(Serialize, Deserialize)]
enum Answer {
    Granted {
        random: Zeroizing<String>,
        id: String,
        addresses: Vec<String>,
        port: u16,
    },
    Refused(String),
}

/// What a client says that has the key where it survives a reboot.
#[derive(Serialize, Deserialize)]
struct Kept {}

/// Where a client that has joined finds the server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// Addresses, with `ip:` or `gid:`.
    pub addresses: Vec<String>,
    /// The port of all of them.
    pub port: u16,
}

/// A connection that ends after a time, however slow the other end is.
pub struct Limited {
    stream: TcpStream,
    deadline: Instant,
}

impl Limited {
    /// Limits a connection.
    pub fn new(stream: TcpStream, time: Duration) -> Self {
        Self {
            stream,
            deadline: Instant::now() + time,
        }
    }

    /// Allows more time from now on.
    pub fn extend(&mut self, time: Duration) {
        self.deadline = Instant::now() + time;
    }

    /// Whether the other end is still there, as far as anybody can tell, and has time left.
    pub fn is_open(&self) -> bool {
        if self.left().is_err() || self.stream.set_nonblocking(true).is_err() {
            return false;
        }
        let peeked = self.stream.peek(&mut [0]);
        let is_blocking = self.stream.set_nonblocking(false).is_ok();
        let is_there = match peeked {
            Ok(length) => length > 0,
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
        };
        is_there && is_blocking
    }

    fn left(&self) -> io::Result<Option<Duration>> {
        match self.deadline.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
            left => Ok(Some(left)),
        }
    }
}

/// What a socket says after its time is over, in words of its own.
fn timed_out(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
        _ => error,
    }
}

impl Read for Limited {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(buf).map_err(timed_out)
    }
}

impl Write for Limited {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(buf).map_err(timed_out)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

fn send(stream: &mut impl Write, message: &[u8]) -> io::Result<()> {
    let length = u16::try_from(message.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut bytes = length.to_be_bytes().to_vec();
    bytes.extend(message);
    stream.write_all(&bytes)?;
    stream.flush()
}

fn receive(stream: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut length = [0; 2];
    stream.read_exact(&mut length)?;
    let length = usize::from(u16::from_be_bytes(length));
    if length > MOST {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut message = vec![0; length];
    stream.read_exact(&mut message)?;
    Ok(message)
}

/// Both ends have proved the token.
struct Channel {
    cipher: TransportState,
    /// The hash of all messages before.
    hash: Vec<u8>,
}

impl Channel {
    fn new(state: HandshakeState) -> Result<Self, JoinError> {
        let hash = state.get_handshake_hash().to_vec();
        let cipher = state.into_transport_mode();
        let cipher = cipher.map_err(|_| JoinError::Nonsense)?;
        Ok(Self { cipher, hash })
    }

    fn send(&mut self, stream: &mut impl Write, message: &impl Serialize) -> Result<(), JoinError> {
        // With room for all: a text that grows leaves copies of a secret behind.
        let mut text = Zeroizing::new(Vec::with_capacity(MOST));
        serde_json::to_writer(&mut *text, message).map_err(|_| JoinError::Nonsense)?;
        let mut sealed = vec![0; text.len() + TAG];
        let length = self.cipher.write_message(&text, &mut sealed);
        let length = length.map_err(|_| JoinError::Nonsense)?;
        send(stream, sealed.get(..length).unwrap_or_default()).map_err(JoinError::Lost)
    }

    fn receive<T: for<'a> Deserialize<'a>>(
        &mut self,
        stream: &mut impl Read,
    ) -> Result<T, JoinError> {
        let sealed = receive(stream).map_err(JoinError::Lost)?;
        let mut text = Zeroizing::new(vec![0; sealed.len()]);
        let length = self.cipher.read_message(&sealed, &mut text);
        let length = length.map_err(|_| JoinError::Nonsense)?;
        let text = text.get(..length).unwrap_or_default();
        serde_json::from_slice(text).map_err(|_| JoinError::Nonsense)
    }

    fn key(&self, random: &Key) -> Result<Key, JoinError> {
        let mac = Hmac::<Sha256>::new_from_slice(random.as_bytes());
        let mut mac = mac.map_err(|_| JoinError::Nonsense)?;
        mac.update(KEY_OF);
        mac.update(&self.hash);
        let mut made = mac.finalize().into_bytes();
        let key = Key::read_with(|bytes: &mut [u8; KEY_LEN]| {
            bytes.copy_from_slice(&made);
            Ok(())
        });
        made.as_mut_slice().zeroize();
        key
    }
}

fn prologue(host: &str) -> String {
    format!("{GREETING}{host}")
}

fn builder<'a>(secret: &'a Key, prologue: &'a str) -> Result<Builder<'a>, snow::Error> {
    Builder::new(PATTERN.parse()?)
        .psk(0, secret.as_bytes())?
        .prologue(prologue.as_bytes())
}

/// What a client gets of a server that it has joined.
pub struct Given {
    /// The key.
    pub key: Key,
    /// Its id.
    pub id: KeyId,
    /// Where the server is.
    pub place: Place,
    channel: Channel,
}

impl fmt::Debug for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Given").field(&self.id).finish()
    }
}

impl Given {
    /// Tells the server that the key is kept here, so that former ones of the host may go.
    ///
    /// # Errors
    ///
    /// See [`JoinError`].
    pub fn kept(mut self, stream: &mut impl Write) -> Result<(), JoinError> {
        self.channel.send(stream, &Kept {})
    }
}

/// The client's part: proves the token to the server, and takes the key.
///
/// # Errors
///
/// See [`JoinError`].
pub fn join(
    stream: &mut (impl Read + Write),
    host: &str,
    secret: &Key,
    machine: &str,
) -> Result<Given, JoinError> {
    let prologue = prologue(host);
    let state = builder(secret, &prologue).and_then(Builder::build_initiator);
    let mut state = state.map_err(|_| JoinError::Nonsense)?;
    let mut first = [0; 128];
    let length = state.write_message(&[], &mut first);
    let length = length.map_err(|_| JoinError::Nonsense)?;
    send(stream, prologue.as_bytes()).map_err(JoinError::Connection)?;
    send(stream, first.get(..length).unwrap_or_default()).map_err(JoinError::Connection)?;
    let second = receive(stream).map_err(|error| match error.kind() {
        // It does not know the token, and says no more to strangers.
        io::ErrorKind::UnexpectedEof
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::InvalidData => JoinError::Stranger,
        _ => JoinError::Connection(error),
    })?;
    let read = state.read_message(&second, &mut vec![0; second.len()]);
    read.map_err(|_| JoinError::Stranger)?;
    let mut channel = Channel::new(state)?;
    let hello = Hello {
        machine: machine.to_owned(),
    };
    channel.send(stream, &hello)?;
    match channel.receive(stream)? {
        Answer::Refused(why) => Err(JoinError::Refused(shown(&why))),
        Answer::Granted {
            random,
            id,
            addresses,
            port,
        } => granted(channel, &random, &id, &addresses, port).ok_or(JoinError::Nonsense),
    }
}

fn granted(
    channel: Channel,
    random: &str,
    id: &str,
    addresses: &[String],
    port: u16,
) -> Option<Given> {
    let key = channel.key(&key(random)?).ok()?;
    let id = KeyId::new(id.as_bytes())?;
    // Nothing else of the other end's words reaches a file.
    let addresses = addresses
        .iter()
        .map(|text| Some(Addr::parse(text).ok()?.to_string()))
        .collect::<Option<Vec<String>>>()?;
    let is_sane = port > 0 && !addresses.is_empty() && addresses.len() <= MOST_ADDRESSES;
    let place = Place { addresses, port };
    is_sane.then_some(Given {
        key,
        id,
        place,
        channel,
    })
}

/// Text of the other end, without what a terminal would take for a command or write backwards.
fn shown(text: &str) -> String {
    plain(text, MOST_SHOWN, |c| c == ' ' || c.is_ascii_graphic())
}

/// The name of a machine, as the other end gives it: nothing that could be taken for more than a name in a log.
fn machine_name(text: &str) -> String {
    plain(text, MOST_OF_MACHINE, |c| {
        c.is_ascii_alphanumeric() || c == '-' || c == '.'
    })
}

fn plain(text: &str, most: usize, is_plain: impl Fn(char) -> bool) -> String {
    let plain = |c| if is_plain(c) { c } else { '?' };
    text.chars().take(most).map(plain).collect()
}

/// A client that has sent its first message.
pub struct Knock {
    host: String,
    first: Vec<u8>,
}

impl Knock {
    /// Waits for what a client sends first.
    ///
    /// # Errors
    ///
    /// See [`JoinError`].
    pub fn receive(stream: &mut impl Read) -> Result<Self, JoinError> {
        let greeting = receive(stream).map_err(JoinError::Connection)?;
        let host = String::from_utf8(greeting).ok();
        let host = host.and_then(|text| text.strip_prefix(GREETING).map(String::from));
        Ok(Self {
            host: host.ok_or(JoinError::Stranger)?,
            first: receive(stream).map_err(JoinError::Connection)?,
        })
    }

    /// The host whose token it claims to have.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Proves the token, and waits until the client has proved that it is there now.
    ///
    /// # Errors
    ///
    /// See [`JoinError`].
    pub fn answer(
        self,
        stream: &mut (impl Read + Write),
        secret: &Key,
    ) -> Result<Guest, JoinError> {
        let prologue = prologue(&self.host);
        let state = builder(secret, &prologue).and_then(Builder::build_responder);
        let mut state = state.map_err(|_| JoinError::Nonsense)?;
        let read = state.read_message(&self.first, &mut vec![0; self.first.len()]);
        read.map_err(|_| JoinError::Stranger)?;
        let mut second = [0; 128];
        let length = state.write_message(&[], &mut second);
        let length = length.map_err(|_| JoinError::Nonsense)?;
        send(stream, second.get(..length).unwrap_or_default()).map_err(JoinError::Connection)?;
        let mut channel = Channel::new(state)?;
        let Hello { machine } = channel.receive(stream)?;
        Ok(Guest {
            channel,
            machine: machine_name(&machine),
        })
    }
}

/// A client that has proved the token.
pub struct Guest {
    channel: Channel,
    /// The name that it gives itself.
    pub machine: String,
}

impl Guest {
    /// The key for the client, which has it when `random` has reached it.
    ///
    /// # Errors
    ///
    /// See [`JoinError`].
    pub fn key(&self, random: &Key) -> Result<Key, JoinError> {
        self.channel.key(random)
    }

    /// Gives the client its key, and says where the server is.
    ///
    /// # Errors
    ///
    /// See [`JoinError`].
    pub fn grant(
        &mut self,
        stream: &mut impl Write,
        random: &Key,
        id: &KeyId,
        place: &Place,
    ) -> Result<(), JoinError> {
        let answer = Answer::Granted {
            random: hex(random.as_bytes()),
            id: id.as_str().to_owned(),
            addresses: place.addresses.clone(),
            port: place.port,
        };
        self.channel.send(stream, &answer)
    }

    /// Waits until the client says that it keeps the key.
    ///
    /// # Errors
    ///
    /// See [`JoinError`].
    pub fn wait_kept(mut self, stream: &mut impl Read) -> Result<(), JoinError> {
        let Kept {} = self.channel.receive(stream)?;
        Ok(())
    }

    /// Tells the client that it gets no key.
    ///
    /// # Errors
    ///
    /// See [`JoinError`].
    pub fn refuse(mut self, stream: &mut impl Write, why: &str) -> Result<(), JoinError> {
        self.channel.send(stream, &Answer::Refused(why.to_owned()))
    }
}

#[cfg(test)]
mod tests;
