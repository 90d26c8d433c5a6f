// SPDX-License-Identifier: GPL-2.0

//! `serve`

use std::env;
use std::ffi::OsStr;
use std::io;
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;

use ibmsg::{Bind, Channel};

use crate::cli::Serve;
use crate::out::{Failure, Out, REFUSED};

const ENOENT: i32 = 2;

pub(crate) fn run(out: Out, serve: &Serve) -> Result<(), Failure> {
    let what = format!("portal {}", serve.portal);
    let failure = |error: ibmsg::Error| Failure::of(&what, &error);
    let bind = Bind::new(&serve.portal);
    let bind = match serve.unauthenticated {
        true => bind.unauthenticated(),
        false => bind,
    };
    let portal = bind.open().map_err(failure)?;
    if let Some(socket) = env::var_os("NOTIFY_SOCKET") {
        ready(&socket).map_err(|e| Failure::new(REFUSED, "NOTIFY_SOCKET", e))?;
    }
    let places = Places::new(serve.max);
    loop {
        // Until one is free, offers wait at the portal.
        let place = places.take();
        let offer = portal.offer().map_err(failure)?;
        let session = offer.session.clone();
        match offer.accept(&[]) {
            Ok(channel) => {
                if let Err(failure) = start(out, serve, &session, channel, place) {
                    failure.print(out.json);
                }
            }
            // The program does not wait any more.
            Err(error) if error.errno() == Some(ENOENT) => {}
            Err(error) => failure(error).print(out.json),
        }
    }
}

/// Starts the program for a channel. This process keeps no descriptor of the channel, which ends with the program.
fn start(
    out: Out,
    serve: &Serve,
    session: &str,
    channel: Channel,
    place: Place,
) -> Result<(), Failure> {
    let number = channel.number().unwrap_or(0);
    let what = format!("channel {number} of session {session}");
    let child = spawn(serve, session, number, &channel);
    drop(channel);
    let child = child.map_err(|error| Failure::new(REFUSED, &what, error))?;
    thread::spawn(move || wait(out, &what, child, place));
    Ok(())
}

fn spawn(serve: &Serve, session: &str, number: u32, channel: &Channel) -> io::Result<Child> {
    let [program, arguments @ ..] = &serve.program[..] else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    Command::new(program)
        .args(arguments)
        .env("IBMSG_PORTAL", &serve.portal)
        .env("IBMSG_SESSION", session)
        .env("IBMSG_CHANNEL", number.to_string())
        // The services of systemd are told once, by this process.
        .env_remove("NOTIFY_SOCKET")
        .stdin(channel.as_fd().try_clone_to_owned()?)
        .stdout(channel.as_fd().try_clone_to_owned()?)
        .stderr(Stdio::inherit())
        .spawn()
}

fn wait(out: Out, what: &str, mut child: Child, place: Place) {
    let why = match child.wait() {
        Ok(status) if status.success() => None,
        Ok(status) => Some(format!("the program has failed: {status}")),
        Err(error) => Some(error.to_string()),
    };
    if let Some(why) = why {
        Failure::new(REFUSED, what, why).print(out.json);
    }
    drop(place);
}

/// Tells systemd that the portal is bound.
fn ready(socket: &OsStr) -> io::Result<()> {
    let address = match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?.send_to_addr(b"READY=1", &address)?;
    Ok(())
}

/// Places for programs.
struct Places {
    free: Arc<(Mutex<u32>, Condvar)>,
}

/// A place, which is free again when this is dropped.
struct Place {
    free: Arc<(Mutex<u32>, Condvar)>,
}

impl Places {
    fn new(count: u32) -> Self {
        Self {
            free: Arc::new((Mutex::new(count), Condvar::new())),
        }
    }

    /// Waits for one.
    fn take(&self) -> Place {
        let (free, changed) = &*self.free;
        let lock = free.lock().unwrap_or_else(PoisonError::into_inner);
        let lock = changed.wait_while(lock, |free| *free == 0);
        *lock.unwrap_or_else(PoisonError::into_inner) -= 1;
        Place {
            free: self.free.clone(),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let (free, changed) = &*self.free;
        *free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn places_come_back() {
        let places = Arc::new(Places::new(2));
        let (first, second) = (places.take(), places.take());
        let waiter = {
            let places = places.clone();
            thread::spawn(move || drop(places.take()))
        };
        thread::sleep(Duration::from_millis(50));
        assert!(!waiter.is_finished());
        drop(first);
        waiter.join().expect("a thread");
        drop((places.take(), second));
    }

    #[test]
    fn systemd_is_told() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let socket = UnixDatagram::bind(&path).expect("a socket");
        ready(path.as_os_str()).expect("a reader");
        let mut told = [0; 100];
        assert_eq!(socket.recv(&mut told).expect("a message"), 7);
        assert_eq!(&told[..7], b"READY=1");
        assert!(ready(folder.path().join("none").as_os_str()).is_err());
        assert!(ready(OsStr::new("@ibmsg-nobody")).is_err());
    }
}
