// SPDX-License-Identifier: GPL-2.0

//! Discovery: lists of the exports that servers let sessions open, in
//! `/sys/class/ibnbd-client/ctl/discovered/`.
//!
//! The latest list of each session stays until there is a newer one, or there are too many. A list
//! may be longer than a file of sysfs, so it has a directory for each page of text.
//!
//! Contexts: *sysfs*.

use crate::{
    admin,
    session::Session, //
};
use ibnbd_proto::msg::{
    DiscoverRsp,
    DISCOVER_RSP_LEN, //
};
use ibtrs_core::convert::Shown;
use ibtrs_proto::name::{
    DevicePath,
    SessionName, //
};
use kernel::{
    new_mutex,
    prelude::*,
    str::CString,
    sync::{
        Arc,
        Mutex, //
    },
    time::{
        Instant,
        Monotonic, //
    }, //
};
use kx::sysfs::{
    Attr,
    Dir,
    PlainDir, //
};

/// Maximum number of retained lists, each of a different session.
const MAX_LISTS: usize = 16;
/// Bytes of a page of text, which fit in a file of sysfs; also of a request, which is shown.
pub(crate) const PAGE_LEN: usize = 4000;
/// Pages of a list: a server cannot make it longer than 1 MiB.
const MAX_PAGES: usize = 256;
/// Maximum number of answers in a discovery. All answers of a well-behaved server except the last
/// have 4 KiB, so that fewer than 400 fill the pages.
const MAX_ANSWERS: usize = 512;
/// Maximum duration of a discovery, in milliseconds.
const MAX_MS: i64 = 60_000;

/// Lines of text, in pages that are shown in one file each.
#[derive(Default)]
struct Text {
    pages: KVec<Arc<KVec<u8>>>,
    last: KVec<u8>,
}

impl Text {
    /// Adds a line, which includes its newline.
    ///
    /// # Errors
    ///
    /// `EFBIG` if there are too many; `ENOMEM`.
    fn push(&mut self, line: &[u8]) -> Result {
        if self.last.len() + line.len() > PAGE_LEN {
            self.turn()?;
        }
        Ok(self.last.extend_from_slice(line, GFP_KERNEL)?)
    }

    fn turn(&mut self) -> Result {
        if self.pages.len() >= MAX_PAGES {
            return Err(EFBIG);
        }
        let page = Arc::new(core::mem::take(&mut self.last), GFP_KERNEL)?;
        Ok(self.pages.push(page, GFP_KERNEL)?)
    }
}

/// The answer of a server.
#[derive(Default)]
pub(crate) struct Found {
    exports: Text,
    /// A line for each portal.
    portals: KVec<u8>,
    /// The port of the session, to which all its paths go.
    port: u16,
    unlisted: bool,
}

impl Found {
    /// Adds an answer.
    fn add(&mut self, rsp: &DiscoverRsp<'_>, is_first: bool) -> Result {
        if is_first {
            self.unlisted = rsp.unlisted;
            for portal in rsp.portals() {
                let line =
                    CString::try_from_fmt(fmt!("{} {}\n", Shown(*portal.addr()), portal.port()))?;
                self.portals
                    .extend_from_slice(line.to_bytes(), GFP_KERNEL)?;
            }
        }
        for export in rsp.exports() {
            let line = CString::try_from_fmt(fmt!(
                "{} {} {} {}\n",
                export.name.as_str(),
                export.access_mode.as_str(),
                export.nsectors,
                export.logical_block_size
            ))?;
            self.exports.push(line.to_bytes())?;
        }
        Ok(())
    }
}

/// Requests the exports that a session may open from its server.
///
/// # Context
///
/// May sleep; interruptible.
///
/// # Errors
///
/// `EFBIG` if there are too many exports or answers; `ETIMEDOUT` if the answers take too long;
/// errors of [`admin::discover`].
pub(crate) fn ask(session: &Session) -> Result<Found> {
    let begin = Instant::<Monotonic>::now();
    let mut found = Found {
        port: session.transport().port(),
        ..Found::default()
    };
    let mut reply = KVec::from_elem(0u8, DISCOVER_RSP_LEN, GFP_KERNEL)?;
    let mut after: Option<CString> = None;
    for _ in 0..MAX_ANSWERS {
        // A server that is slow each time would keep the operator waiting forever.
        if begin.elapsed().as_millis() >= MAX_MS {
            return Err(ETIMEDOUT);
        }
        let name = match &after {
            Some(name) => Some(DevicePath::new(name.to_bytes()).map_err(|_| EPROTO)?),
            None => None,
        };
        let rsp = match admin::discover(session.transport(), name, &mut reply) {
            // The session was lost before the message was sent.
            Err(ESTALE) => continue,
            rsp => rsp?,
        };
        found.add(&rsp, after.is_none())?;
        match rsp.last {
            Some(last) if rsp.more => {
                after = Some(CString::try_from_fmt(fmt!("{}", last.as_str()))?);
            }
            _ => {
                if !found.exports.last.is_empty() {
                    found.exports.turn()?;
                }
                return Ok(found);
            }
        }
    }
    Err(EFBIG)
}

/// A list, as shown in its directory.
struct List {
    /// Counts the lists, so that readers notice another one.
    number: u64,
    /// The line that the operator has written.
    request: KVec<u8>,
    portals: KVec<u8>,
    port: u16,
    unlisted: bool,
    pages: usize,
}

/// Only root may read them, as only root may start a discovery.
static FILES: [Attr<Arc<List>>; 6] = [
    Attr::new(
        c"number",
        0o400,
        Some(|list: &List, buf| buf.line(fmt!("{}", list.number))),
        None,
    ),
    Attr::new(
        c"request",
        0o400,
        Some(|list: &List, buf| {
            buf.bytes(&list.request)?;
            buf.bytes(b"\n")
        }),
        None,
    ),
    Attr::new(
        c"portals",
        0o400,
        Some(|list: &List, buf| buf.bytes(&list.portals)),
        None,
    ),
    Attr::new(
        c"port",
        0o400,
        Some(|list: &List, buf| buf.line(fmt!("{}", list.port))),
        None,
    ),
    Attr::new(
        c"unlisted",
        0o400,
        Some(|list: &List, buf| buf.line(fmt!("{}", u8::from(list.unlisted)))),
        None,
    ),
    Attr::new(
        c"pages",
        0o400,
        Some(|list: &List, buf| buf.line(fmt!("{}", list.pages))),
        None,
    ),
];

static PAGE_FILES: [Attr<Arc<KVec<u8>>>; 1] = [Attr::new(
    c"exports",
    0o400,
    Some(|text: &KVec<u8>, buf| buf.bytes(text)),
    None,
)];

/// The directory of a list. Its files take no lock, so it can be dropped under any lock.
struct Folder {
    session: CString,
    // In the order of removal.
    _pages: KVec<Dir<Arc<KVec<u8>>>>,
    _dir: Dir<Arc<List>>,
}

struct DiscoveriesInner {
    /// The directory of all lists, from the creation of its parent until that is removed.
    parent: Option<PlainDir>,
    /// The oldest first.
    lists: KVec<Folder>,
    last: u64,
}

/// The latest lists.
#[pin_data]
pub(crate) struct Discoveries {
    #[pin]
    inner: Mutex<DiscoveriesInner>,
}

impl Discoveries {
    pub(crate) fn new() -> impl PinInit<Self> {
        let inner = DiscoveriesInner {
            parent: None,
            lists: KVec::new(),
            last: 0,
        };
        pin_init!(Self {
            inner <- new_mutex!(inner, "Discoveries::inner"),
        })
    }

    /// Sets the directory of the lists; `None` removes it and them.
    pub(crate) fn show_in(&self, parent: Option<PlainDir>) {
        let mut inner = self.inner.lock();
        let lists = core::mem::take(&mut inner.lists);
        drop(lists);
        inner.parent = parent;
    }

    /// Shows the result of `request`, which replaces the former list of the session.
    ///
    /// # Errors
    ///
    /// `ENODEV` without a directory; `ENOMEM`.
    pub(crate) fn show(&self, session: SessionName<'_>, request: &[u8], found: Found) -> Result {
        let name = CString::try_from_fmt(fmt!("{}", session.as_str()))?;
        let mut text = KVec::with_capacity(request.len(), GFP_KERNEL)?;
        text.extend_from_slice(request, GFP_KERNEL)?;
        let mut pages = KVec::with_capacity(found.exports.pages.len(), GFP_KERNEL)?;
        let mut inner = self.inner.lock();
        inner.last += 1;
        let list = List {
            number: inner.last,
            request: text,
            portals: found.portals,
            port: found.port,
            unlisted: found.unlisted,
            pages: found.exports.pages.len(),
        };
        // The former list is removed only when no other step than creating the new directories can
        // fail; sysfs does not allow two of the same name.
        let list = Arc::new(list, GFP_KERNEL)?;
        inner.lists.reserve(1, GFP_KERNEL)?;
        if inner.parent.is_none() {
            return Err(ENODEV);
        }
        let lists = &mut inner.lists;
        lists.retain(|other| *other.session != *name);
        if lists.len() >= MAX_LISTS {
            let _ = lists.remove(0);
        }
        let parent = inner.parent.as_ref().ok_or(ENODEV)?;
        let dir = Dir::new(parent, fmt!("{}", session.as_str()), list, &FILES)?;
        for (number, page) in found.exports.pages.into_iter().enumerate() {
            let page = Dir::new(&dir, fmt!("{number}"), page, &PAGE_FILES)?;
            pages.push(page, GFP_KERNEL)?;
        }
        let shown = Folder {
            session: name,
            _pages: pages,
            _dir: dir,
        };
        Ok(inner.lists.push(shown, GFP_KERNEL)?)
    }
}
