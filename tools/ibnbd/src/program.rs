// SPDX-License-Identifier: GPL-2.0

//! Other programs, and what they print.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::root::Root;

/// How long a program may take that works on a key, with a TPM: a client that joins waits for two of them.
const PATIENCE: Duration = Duration::from_secs(30);

/// A program of the machine, or that of a folder that looks like one.
pub(crate) fn command(root: &Root, name: &str) -> Command {
    let program: OsString = if root.is_machine() {
        name.into()
    } else {
        root.real(&format!("/usr/sbin/{name}")).into()
    };
    Command::new(program)
}

/// The output of a program that is killed after a time.
///
/// # Errors
///
/// The system's where there is no such program; `TimedOut` if it does not end, and `Other` if it
/// fails.
pub(crate) fn output(mut program: Command, limit: Duration) -> io::Result<Vec<u8>> {
    let mut child = program
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let (ended, result) = mpsc::channel();
    let stdout = child.stdout.take();
    // It stays behind if the program cannot be killed.
    thread::spawn(move || {
        let mut printed = Vec::new();
        let read = stdout.map_or(Ok(0), |mut stdout| stdout.read_to_end(&mut printed));
        // Nobody waits for it after the limit.
        let _ = ended.send(read.map(|_| printed));
    });
    let Ok(printed) = result.recv_timeout(limit) else {
        // Not waited for: it may hang in the kernel.
        let _ = child.kill();
        return Err(io::ErrorKind::TimedOut.into());
    };
    match child.wait()?.success() {
        true => printed,
        false => Err(io::ErrorKind::Other.into()),
    }
}

/// What a program makes of `input`.
///
/// # Errors
///
/// The system's where there is no such program; `TimedOut` if it does not end, and `Other` with the
/// last line that it has said if it fails.
pub(crate) fn filtered(mut program: Command, input: &[u8]) -> io::Result<Vec<u8>> {
    fed(&mut program, input)?.map_err(|said| {
        let last = last_line(&said).unwrap_or("it failed without a word");
        io::Error::other(last.to_owned())
    })
}

/// What a program makes of `input`, or what it has said if it fails. It is killed if it does not end.
///
/// # Errors
///
/// The system's where there is no such program; `TimedOut` if it does not end.
pub(crate) fn fed(program: &mut Command, input: &[u8]) -> io::Result<Result<Vec<u8>, String>> {
    fed_within(program, input, PATIENCE)
}

fn fed_within(
    program: &mut Command,
    input: &[u8],
    limit: Duration,
) -> io::Result<Result<Vec<u8>, String>> {
    let deadline = Instant::now() + limit;
    let mut child = program
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let (stdout, stderr) = (gather(child.stdout.take()), gather(child.stderr.take()));
    // It says itself why it takes no more. A key is shorter than what a pipe holds.
    let fed = child
        .stdin
        .take()
        .map_or(Ok(()), |mut to| to.write_all(input));
    let rest = |ended: mpsc::Receiver<_>| {
        ended.recv_timeout(deadline.saturating_duration_since(Instant::now()))
    };
    let (Ok(printed), Ok(said)) = (rest(stdout), rest(stderr)) else {
        // Not waited for: it may hang in the kernel.
        let _ = child.kill();
        return Err(io::ErrorKind::TimedOut.into());
    };
    if !child.wait()?.success() {
        return Ok(Err(String::from_utf8_lossy(&said?).into_owned()));
    }
    fed?;
    printed.map(Ok)
}

/// Reads all of a pipe in a thread, which stays behind if the program cannot be killed.
fn gather(pipe: Option<impl Read + Send + 'static>) -> mpsc::Receiver<io::Result<Vec<u8>>> {
    let (ended, result) = mpsc::channel();
    thread::spawn(move || {
        let mut text = Vec::new();
        let read = pipe.map_or(Ok(0), |mut pipe| pipe.read_to_end(&mut text));
        // Nobody waits for it after the limit.
        let _ = ended.send(read.map(|_| text));
    });
    result
}

/// The last line of what a program has said.
pub(crate) fn last_line(said: &str) -> Option<&str> {
    said.lines().rfind(|line| !line.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_program_that_hangs_is_not_waited_for() {
        let shell = |text: &str| {
            let mut shell = Command::new("sh");
            shell.args(["-c", text]);
            shell
        };
        let start = Instant::now();
        // It keeps its output open, and so does what it has started.
        let found = output(
            shell("sleep 20 & echo $$; exec sleep 20"),
            Duration::from_millis(100),
        );
        assert_eq!(found.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(start.elapsed() < Duration::from_secs(10));
        let long = Duration::from_secs(30);
        assert_eq!(output(shell("echo x"), long).unwrap(), b"x\n");
        let start = Instant::now();
        let fed = |text: &str, limit| fed_within(&mut shell(text), b"key", limit);
        let hangs = fed("cat; exec sleep 20", Duration::from_millis(100));
        assert_eq!(hangs.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(start.elapsed() < Duration::from_secs(10));
        assert_eq!(fed("cat", long).unwrap().unwrap(), b"key");
        let said = fed("cat; echo why >&2; exit 1", long).unwrap();
        assert_eq!(said.unwrap_err(), "why\n");
        let error = output(shell("echo x; exit 1"), long).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Other);
    }
}
