// SPDX-License-Identifier: GPL-2.0

//! GET and PUT. The kernel has no way to poll for their end, so each blocks a thread of tokio's pool for blocking calls.
//! Such a thread owns the memory of its operation: a future can be dropped at any time.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use ::tokio::task::spawn_blocking;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use super::reader::Reader;
use crate::error::{Error, Result};
use crate::memory::{self, may_go_on, Remote};
use crate::words::Doing;

/// Runs a call that blocks.
pub(super) async fn in_thread<T: Send + 'static>(
    call: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    match spawn_blocking(call).await {
        Ok(result) => result,
        Err(e) => match e.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime ends.
            Err(_) => Err(Error::system(Doing::Copy, Errno::CANCELED)),
        },
    }
}

/// Runs a GET or a PUT, when the channel may have another one under way.
async fn copy<T: Send + 'static>(
    reader: &Reader,
    call: impl FnOnce(&File) -> io::Result<T> + Send + 'static,
) -> Result<T> {
    let permit = reader.copies.clone().acquire_owned().await;
    let file = reader.shared_file();
    in_thread(move || {
        let done = call(&file).map_err(|e| Error::system(Doing::Copy, e));
        drop(permit);
        done
    })
    .await
}

/// Waits for room for the note of a PUT. If there is some, other programs have as many operations under way as there may
/// be, and nothing tells when that is over.
fn wait_for_room(file: &Arc<File>) -> io::Result<()> {
    let mut files = [PollFd::new(file, PollFlags::OUT)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let found = poll(&mut files, Some(&now)).and_then(|found| match found {
        0 => poll(&mut files, None).map(drop),
        _ => {
            sleep(Duration::from_millis(1));
            Ok(())
        }
    });
    match found {
        Err(Errno::INTR) => Ok(()),
        result => result.map_err(io::Error::from),
    }
}

pub(super) async fn put(
    reader: &Reader,
    place: Remote,
    bytes: Vec<u8>,
    timeout: Option<Duration>,
) -> Result<Vec<u8>> {
    let shared = reader.shared_file();
    let call = move |file: &File| loop {
        match memory::put(file, place, &bytes, timeout) {
            Ok(()) => return Ok(bytes),
            // The file does not block.
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => wait_for_room(&shared)?,
            Err(e) => {
                // What goes on uses the pages of this buffer, which must not become those of another one.
                if may_go_on(&e) {
                    std::mem::forget(bytes);
                }
                return Err(e);
            }
        }
    };
    copy(reader, call).await
}

pub(super) async fn get(
    reader: &Reader,
    place: Remote,
    len: usize,
    timeout: Option<Duration>,
) -> Result<Vec<u8>> {
    copy(reader, move |file| memory::get(file, place, len, timeout)).await
}
