// SPDX-License-Identifier: GPL-2.0

//! Device names on the server.
//!
//! The server looks below its search path only. `%SESSNAME%` in the search path stands for the
//! client's session, so that each client can have a folder of its own.

use core::ffi::CStr;

use ibtrs_proto::name::{DevicePath, SessionName};
use ibtrs_proto::Errno;

/// Longest path in bytes, with its closing NUL.
pub const PATH_MAX: usize = 4096;

const MARK_AFTER_PERCENT: &str = "SESSNAME%";

/// Why a path is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PathError {
    /// Nothing is left of the device's name.
    Empty,
    /// The path has a ".." component.
    Parent,
    /// 4096 bytes or more, or more than the buffer takes.
    TooLong,
    /// The path has a NUL or another control character.
    NotPrintable,
    /// The search path does not begin with '/'.
    Relative,
}

impl PathError {
    /// One line for the log.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Empty => "device name is empty",
            Self::Parent => "path contains a '..' component",
            Self::TooLong => "path is longer than 4095 bytes",
            Self::NotPrintable => "path contains control characters",
            Self::Relative => "search path does not begin with '/'",
        }
    }

    /// The errno to return or to answer with.
    pub const fn errno(&self) -> Errno {
        match self {
            Self::TooLong => Errno::ENAMETOOLONG,
            _ => Errno::EINVAL,
        }
    }
}

/// Checks the parameter `dev_search_path` and cuts the newline at its end.
///
/// # Errors
///
/// When it is not an absolute path of less than 4096 bytes without ".." and control
/// characters.
pub fn search_path(text: &str) -> Result<&str, PathError> {
    let text = text.trim_end_matches('\n');
    if text.len() >= PATH_MAX {
        return Err(PathError::TooLong);
    }
    if text.chars().any(char::is_control) {
        return Err(PathError::NotPrintable);
    }
    if !text.starts_with('/') {
        return Err(PathError::Relative);
    }
    if text.split('/').any(|part| part == "..") {
        return Err(PathError::Parent);
    }
    Ok(text)
}

/// Whether the search path is `/` or `/dev`, however written: every block device of the machine is
/// below it, those that the machine itself uses included.
pub fn holds_every_device(search: &str) -> bool {
    let mut parts = search.split('/').filter(|part| !matches!(*part, "" | "."));
    matches!((parts.next(), parts.next()), (None | Some("dev"), None))
}

/// Writes the path of the directory below which all devices of `session` are to `buf`.
///
/// The path is absolute, has neither empty nor "." components, and ends with NUL. Every
/// `%SESSNAME%` of the search path is replaced, also within a component.
///
/// # Errors
///
/// When a ".." or a control character is in it, or when the result does not fit 4096 bytes or
/// `buf`.
pub fn root<'b>(
    buf: &'b mut [u8],
    search: &str,
    session: SessionName<'_>,
) -> Result<&'b CStr, PathError> {
    let mut out = PathBuilder { buf, len: 0 };
    for part in search_path(search)?.split('/') {
        out.component(part, Some(session.as_str()))?;
    }
    if out.len == 0 {
        out.push("/")?;
    }
    out.finish()
}

/// Writes the path of `device` below the directory `root`, from [`root()`], to `buf`.
///
/// A device may be named relative to the directory, or by its whole path, from which the
/// directory is dropped. The result begins with '/', and must be looked up with the directory
/// as the root. A `%SESSNAME%` in the name is not replaced.
///
/// # Errors
///
/// When a ".." or a control character is in it, when nothing is left of the name, or when the
/// result does not fit 4096 bytes or `buf`.
pub fn below<'b>(
    buf: &'b mut [u8],
    root: &CStr,
    device: DevicePath<'_>,
) -> Result<&'b CStr, PathError> {
    let root = root.to_str().map_err(|_| PathError::NotPrintable)?;
    let name = device.as_str();
    let name = match name.strip_prefix(root) {
        Some(rest) if rest.starts_with('/') => rest,
        _ => name,
    };
    let mut out = PathBuilder { buf, len: 0 };
    for part in name.split('/') {
        out.component(part, None)?;
    }
    if out.len == 0 {
        return Err(PathError::Empty);
    }
    out.finish()
}

struct PathBuilder<'b> {
    buf: &'b mut [u8],
    len: usize,
}

impl<'b> PathBuilder<'b> {
    /// Appends '/' and a component, unless it is empty or ".".
    fn component(&mut self, part: &str, session: Option<&str>) -> Result<(), PathError> {
        match part {
            "" | "." => return Ok(()),
            ".." => return Err(PathError::Parent),
            _ => {}
        }
        self.push("/")?;
        let Some(session) = session else {
            return self.push(part);
        };
        let mut rest = part;
        while let Some((before, after)) = rest.split_once('%') {
            self.push(before)?;
            match after.strip_prefix(MARK_AFTER_PERCENT) {
                Some(after) => {
                    self.push(session)?;
                    rest = after;
                }
                None => {
                    self.push("%")?;
                    rest = after;
                }
            }
        }
        self.push(rest)
    }

    fn push(&mut self, text: &str) -> Result<(), PathError> {
        let end = self
            .len
            .checked_add(text.len())
            .filter(|&end| end < PATH_MAX)
            .ok_or(PathError::TooLong)?;
        let place = self.buf.get_mut(self.len..end).ok_or(PathError::TooLong)?;
        place.copy_from_slice(text.as_bytes());
        self.len = end;
        Ok(())
    }

    fn finish(self) -> Result<&'b CStr, PathError> {
        let nul = self.buf.get_mut(self.len).ok_or(PathError::TooLong)?;
        *nul = 0;
        let whole = self.buf.get(..=self.len).ok_or(PathError::TooLong)?;
        CStr::from_bytes_with_nul(whole).map_err(|_| PathError::NotPrintable)
    }
}
