// SPDX-License-Identifier: GPL-2.0

//! The block layer's status of an ended I/O.
//!
//! Contexts: *any*.
//!
//! Differs from [`kernel::block::mq`], where a request can only end with success (`end_ok`), and
//! the conversion of an errno is not public.
//!
//! # Examples
//!
//! ```
//! # use kernel::prelude::*;
//! use kx::blk::Status;
//!
//! assert!(Status::OK.is_ok());
//! assert!(Status::MEDIUM.to_result().is_err());
//! assert!(Status::from(ETIMEDOUT) == Status::TIMEOUT);
//! ```

use ibtrs_bindings as ours;
use kernel::{
    bindings,
    prelude::*, //
};

/// The final status of a request or bio, `blk_status_t` in C.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Status(bindings::blk_status_t);

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $value:ident, $errno:expr;)*) => {
        impl Status {
            $($(#[$doc])* pub const $name: Self = Self(ours::$value);)*

            /// Every status but success, with its errno.
            const TABLE: &'static [(Self, Error, &'static str)] = &[
                $((Self::$name, $errno, stringify!($name)),)*
            ];
        }
    };
}

statuses! {
    /// The device does not support the operation.
    NOT_SUPPORTED = BLK_STS_NOTSUPP, EOPNOTSUPP;
    /// The device did not answer in time.
    TIMEOUT = BLK_STS_TIMEOUT, ETIMEDOUT;
    /// The device has run out of space.
    NO_SPACE = BLK_STS_NOSPC, ENOSPC;
    /// The path to the device failed; another path may work.
    TRANSPORT = BLK_STS_TRANSPORT, ENOLINK;
    /// The device failed for good.
    TARGET = BLK_STS_TARGET, EREMOTEIO;
    /// Another host holds a reservation.
    RESERVATION = BLK_STS_RESV_CONFLICT, EBADE;
    /// The medium cannot be read or written at this sector.
    MEDIUM = BLK_STS_MEDIUM, ENODATA;
    /// The data does not match its protection information.
    PROTECTION = BLK_STS_PROTECTION, EILSEQ;
    /// The system lacks a resource; the request can be retried soon.
    RESOURCE = BLK_STS_RESOURCE, ENOMEM;
    /// Any other I/O error.
    IO_ERROR = BLK_STS_IOERR, EIO;
    /// The request would have to wait, but must not.
    AGAIN = BLK_STS_AGAIN, EAGAIN;
    /// The device lacks a resource until one of its requests ends.
    DEVICE_RESOURCE = BLK_STS_DEV_RESOURCE, EBUSY;
    /// The device is offline.
    OFFLINE = BLK_STS_OFFLINE, ENODEV;
    /// The request is not valid for the device.
    INVALID = BLK_STS_INVAL, EINVAL;
}

impl Status {
    /// Success.
    pub const OK: Self = Self(bindings::BLK_STS_OK as bindings::blk_status_t);

    /// Wraps a status of the block layer.
    #[inline]
    pub(crate) fn from_raw(raw: bindings::blk_status_t) -> Self {
        Self(raw)
    }

    #[inline]
    pub(crate) fn as_raw(self) -> bindings::blk_status_t {
        self.0
    }

    /// Returns whether the I/O succeeded.
    #[inline]
    pub fn is_ok(self) -> bool {
        self == Self::OK
    }

    /// Converts the status to a result; an unknown one becomes `EIO`.
    #[inline]
    pub fn to_result(self) -> Result {
        if self.is_ok() {
            return Ok(());
        }
        Err(self.error())
    }

    #[cold]
    fn error(self) -> Error {
        let known = Self::TABLE.iter().find(|(status, ..)| *status == self);
        known.map_or(EIO, |(_, error, _)| *error)
    }

    /// Returns every status but success.
    pub fn failures() -> impl Iterator<Item = Self> {
        Self::TABLE.iter().map(|(status, ..)| *status)
    }

    /// Returns the name of this status, for messages.
    pub fn name(self) -> &'static str {
        let known = Self::TABLE.iter().find(|(status, ..)| *status == self);
        match known {
            _ if self.is_ok() => "OK",
            Some((.., name)) => name,
            None => "UNKNOWN",
        }
    }
}

impl From<Error> for Status {
    /// Converts an error to its status. An error for which the block layer has no status becomes
    /// [`Status::IO_ERROR`].
    #[cold]
    fn from(error: Error) -> Self {
        let known = Self::TABLE.iter().find(|(_, e, _)| *e == error);
        known.map_or(Self::IO_ERROR, |(status, ..)| *status)
    }
}

impl From<Result> for Status {
    #[inline]
    fn from(result: Result) -> Self {
        match result {
            Ok(()) => Self::OK,
            Err(error) => error.into(),
        }
    }
}

impl core::fmt::Debug for Status {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(kx_blk_status)]
mod tests {
    use super::*;

    #[test]
    fn ok_is_ok() {
        assert!(Status::OK.is_ok());
        assert_eq!(Status::OK.to_result(), Ok(()));
        assert_eq!(Status::from(Ok(())), Status::OK);
        assert_eq!(Status::OK.name(), "OK");
    }

    #[test]
    fn both_ways() {
        for &(status, error, name) in Status::TABLE {
            assert!(!status.is_ok());
            assert_eq!(status.to_result(), Err(error));
            assert_eq!(Status::from(error), status);
            assert_eq!(status.name(), name);
        }
    }

    /// The table agrees with the block layer's.
    #[test]
    fn same_as_c() {
        for &(status, error, _) in Status::TABLE {
            // SAFETY: A pure function of any value.
            let raw = unsafe { bindings::errno_to_blk_status(error.to_errno()) };
            assert_eq!(raw, status.as_raw());
            // SAFETY: A pure function of any known status.
            let errno = unsafe { bindings::blk_status_to_errno(status.as_raw()) };
            assert_eq!(errno, error.to_errno());
        }
    }

    #[test]
    fn unknown_is_eio() {
        assert_eq!(Status::from(ENOTCONN), Status::IO_ERROR);
        assert_eq!(Status(200).to_result(), Err(EIO));
        assert_eq!(Status(200).name(), "UNKNOWN");
    }
}
