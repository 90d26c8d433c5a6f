// SPDX-License-Identifier: GPL-2.0

//! Linux error numbers and their encodings on the wire.

/// A Linux error number as a positive magnitude, 1..=4095.
///
/// The value zero is not an error; functions that may succeed use `Option<Errno>`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Errno(pub i32);

macro_rules! errnos {
    ($($name:ident = $value:literal, $doc:literal;)*) => {
        impl Errno {
            $(#[doc = $doc] pub const $name: Errno = Errno($value);)*

            /// The symbolic name, or `"E?"` for a number without a name here.
            pub const fn as_str(self) -> &'static str {
                match self.0 {
                    $($value => stringify!($name),)*
                    _ => "E?",
                }
            }
        }
    };
}

errnos! {
    EPERM = 1, "Operation not permitted.";
    ENOENT = 2, "No such file or directory.";
    ESRCH = 3, "No such process.";
    EINTR = 4, "Interrupted.";
    EIO = 5, "Input/output error; stands for every number that does not fit the wire.";
    ENXIO = 6, "No such device or address.";
    E2BIG = 7, "List too long.";
    EBADF = 9, "Bad file.";
    EAGAIN = 11, "Try again.";
    ENOMEM = 12, "Out of memory.";
    EACCES = 13, "Permission denied.";
    EFAULT = 14, "Bad address.";
    ENOTBLK = 15, "Not a block device.";
    EBUSY = 16, "Busy.";
    EEXIST = 17, "Exists already.";
    EXDEV = 18, "Across devices.";
    ENODEV = 19, "No such device.";
    ENOTDIR = 20, "Not a directory.";
    EISDIR = 21, "Is a directory.";
    EINVAL = 22, "Invalid argument.";
    ENFILE = 23, "Too many open files in the system.";
    EMFILE = 24, "Too many open files.";
    ENOTTY = 25, "Not for this kind of device.";
    ETXTBSY = 26, "Text file busy.";
    EFBIG = 27, "File too large.";
    ENOSPC = 28, "No space left.";
    ESPIPE = 29, "No seeking.";
    EROFS = 30, "Read-only.";
    EPIPE = 32, "Broken pipe.";
    EDOM = 33, "Out of the domain.";
    ERANGE = 34, "Out of range.";
    EDEADLK = 35, "Deadlock.";
    ENAMETOOLONG = 36, "Name too long.";
    ENOLCK = 37, "No locks left.";
    ENOSYS = 38, "Not implemented.";
    ENOTEMPTY = 39, "Not empty.";
    ELOOP = 40, "Too many links on the way, or one that must not be followed.";
    ENODATA = 61, "No data available.";
    ETIME = 62, "Timer expired.";
    ENOLINK = 67, "Link has been severed.";
    ECOMM = 70, "Communication error on send.";
    EPROTO = 71, "Protocol error.";
    EREMCHG = 78, "Remote address changed.";
    EBADMSG = 74, "Bad message.";
    EOVERFLOW = 75, "Too large for its type.";
    EBADE = 52, "Invalid exchange.";
    EILSEQ = 84, "Illegal byte sequence.";
    EDESTADDRREQ = 89, "Destination address required.";
    EMSGSIZE = 90, "Message too long.";
    EPROTOTYPE = 91, "Wrong protocol.";
    ENOPROTOOPT = 92, "No such option.";
    EPROTONOSUPPORT = 93, "Protocol not supported.";
    EOPNOTSUPP = 95, "Operation not supported.";
    EAFNOSUPPORT = 97, "Address family not supported.";
    EADDRINUSE = 98, "Address in use.";
    EADDRNOTAVAIL = 99, "Address not available.";
    ENETDOWN = 100, "Network is down.";
    ENETUNREACH = 101, "Network unreachable.";
    ENETRESET = 102, "Connection reset by the network.";
    ECONNABORTED = 103, "Connection aborted.";
    ECONNRESET = 104, "Connection reset by peer.";
    ENOBUFS = 105, "No buffer space.";
    EISCONN = 106, "Connected already.";
    ENOTCONN = 107, "Not connected.";
    ESHUTDOWN = 108, "Shut down.";
    ETIMEDOUT = 110, "Timed out.";
    ECONNREFUSED = 111, "Connection refused.";
    EHOSTDOWN = 112, "Host is down.";
    EHOSTUNREACH = 113, "No route to host.";
    EALREADY = 114, "Already in progress, or done already.";
    EINPROGRESS = 115, "In progress.";
    ESTALE = 116, "Stale: made for an earlier generation of the session, or for another server.";
    EUCLEAN = 117, "Needs cleaning.";
    EREMOTEIO = 121, "Remote input/output error.";
    EDQUOT = 122, "Quota exceeded.";
    ENOMEDIUM = 123, "No medium.";
    EMEDIUMTYPE = 124, "Wrong medium.";
    ECANCELED = 125, "Cancelled.";
    ENOKEY = 126, "No key.";
    EKEYEXPIRED = 127, "Key has expired.";
    EKEYREVOKED = 128, "Key has been revoked.";
    EKEYREJECTED = 129, "Key was rejected.";
    ERESTARTSYS = 512, "Interrupted (kernel-internal number, never on the wire).";
    ENOTSUPP = 524, "Not supported (kernel-internal number, never on the wire).";
}

impl Errno {
    /// Largest magnitude that the immediate of a response can carry: 9 bits.
    pub const MAX_IMM: u16 = 511;

    /// Largest number that user space has (EHWPOISON).
    const MAX_USER: i32 = 133;

    /// The positive magnitude.
    #[inline]
    pub const fn get(self) -> i32 {
        self.0
    }

    /// The negative number that kernel functions return.
    #[inline]
    pub const fn to_kernel(self) -> i32 {
        self.0.saturating_neg()
    }

    /// The error of a kernel return value; `None` if that is no negative error number.
    #[inline]
    pub const fn from_kernel(ret: i32) -> Option<Self> {
        if ret < 0 && ret >= -4095 {
            Some(Self(ret.saturating_neg()))
        } else {
            None
        }
    }

    /// The 9-bit magnitude for a response immediate.
    ///
    /// A number that is not 1..=511 becomes EIO: it is never truncated, which would turn
    /// ENOTSUPP (524) into ENOMEM (12).
    #[inline]
    pub const fn to_imm(self) -> u16 {
        if self.0 >= 1 && self.0 <= 511 {
            // CAST: In range by the comparison.
            self.0 as u16
        } else {
            5
        }
    }

    /// The error that a peer has sent with the number `number`; EIO for one that user space does not
    /// have.
    ///
    /// Errors of a peer end in system calls. Some larger numbers would make the kernel start the call
    /// again, such as 512 (ERESTARTSYS); the others would be nonsense to a program.
    #[inline]
    pub const fn from_peer(number: u16) -> Self {
        // Lossless: u16 to i32.
        match number as i32 {
            number if number >= 1 && number <= Self::MAX_USER => Self(number),
            _ => Self::EIO,
        }
    }

    /// The error of the 9-bit magnitude in a response immediate, as [`Errno::from_peer`]; `None`
    /// means success.
    ///
    /// `ESTALE` from a server becomes `EIO`: only the client itself uses it, for a request that
    /// must be built again. A server that kept sending it could keep a request in flight forever.
    #[inline]
    pub const fn from_imm(magnitude: u16) -> Option<Self> {
        match magnitude & Self::MAX_IMM {
            0 => None,
            number => Some(match Self::from_peer(number) {
                Self::ESTALE => Self::EIO,
                errno => errno,
            }),
        }
    }
}
