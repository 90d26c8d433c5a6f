// SPDX-License-Identifier: GPL-2.0

//! Discovery: lists of the exports that servers let sessions open, in
//! `/sys/class/ibnbd-client/ctl/discovered/`.
//!
//! The latest list of each session stays until there is a newer one, or there are too many. A list
//! may be longer than a file of sysfs, so it has a directory for each page of text.
//!
//! Contexts: *sysfs*.

use crate::session::{
    self,
    Session, //
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
    }, //
};
use kx::sysfs::{
    Attr,
    Dir,
    PlainDir, //
};

/// Lists that are kept; each is that of another session.
const MAX_LISTS: usize = 16;
/// Bytes of a page of text, which fit in a file of sysfs; also of a request, which is shown.
pub(crate) const PAGE_LEN: usize = 4000;
/// Pages of a list: a server cannot make it longer than 1 MiB.
const MAX_PAGES: usize = 256;
/// How often the client begins again because the exports change while it asks.
const MAX_TRIES: usize = 5;

/// Lines of text, in pages that are shown in one file each.
#[derive(Default)]
struct Text {
    pages: KVec<Arc<KVec<u8>>>,
    last: KVec<u8>,
}

impl Text {
    /// Adds a line, whose newline is in it.
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

/// What a server has answered.
#[derive(Default)]
pub(crate) struct Found {
    exports: Text,
    /// A line for each portal.
    portals: KVec<u8>,
    unlisted: bool,
}

impl Found {
    /// Adds an answer; returns the name after which to go on if there are more.
    fn add(&mut self, rsp: &DiscoverRsp<'_>, is_first: bool) -> Result<Option<CString>> {
        if is_first {
            self.unlisted = rsp.unlisted;
            for portal in rsp.portals() {
                let line =
                    CString::try_from_fmt(fmt!("{} {}\n", Shown(*portal.addr()), portal.port()))?;
                self.portals
                    .extend_from_slice(line.to_bytes(), GFP_KERNEL)?;
            }
        }
        let mut last = None;
        for export in rsp.exports() {
            let line = CString::try_from_fmt(fmt!(
                "{} {} {} {}\n",
                export.name.as_str(),
                export.access_mode.as_str(),
                export.nsectors,
                export.logical_block_size
            ))?;
            self.exports.push(line.to_bytes())?;
            last = Some(export.name);
        }
        match last {
            Some(name) if rsp.more => Ok(Some(CString::try_from_fmt(fmt!("{}", name.as_str()))?)),
            _ => Ok(None),
        }
    }
}

/// Asks the server of a session for the exports that the session may open.
///
/// # Context
///
/// May sleep; interruptible.
///
/// # Errors
///
/// `EAGAIN` if the exports change all the time; `EFBIG` if there are too many; errors of
/// [`session::discover`].
pub(crate) fn ask(session: &Session) -> Result<Found> {
    for _ in 0..MAX_TRIES {
        match ask_once(session) {
            // The last export of an answer was taken away, or the session was lost.
            Err(ENOENT | ESTALE) => {}
            result => return result,
        }
    }
    Err(EAGAIN)
}

fn ask_once(session: &Session) -> Result<Found> {
    let mut found = Found::default();
    let mut reply = KVec::from_elem(0u8, DISCOVER_RSP_LEN, GFP_KERNEL)?;
    let mut after: Option<CString> = None;
    loop {
        let name = match &after {
            Some(name) => Some(DevicePath::new(name.to_bytes()).map_err(|_| EPROTO)?),
            None => None,
        };
        let rsp = session::discover(session.transport(), name, &mut reply)?;
        after = found.add(&rsp, after.is_none())?;
        if after.is_none() {
            break;
        }
    }
    if !found.exports.last.is_empty() {
        found.exports.turn()?;
    }
    Ok(found)
}

/// A list as its directory shows it.
struct List {
    /// Counts the lists, so that readers notice another one.
    number: u64,
    /// What the operator has written.
    request: KVec<u8>,
    portals: KVec<u8>,
    unlisted: bool,
    pages: usize,
}

/// Only root may read them, as only root may ask.
static FILES: [Attr<Arc<List>>; 5] = [
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

/// The directory of a list. Its files take no lock, so it can be dropped under any.
struct Folder {
    session: CString,
    // In the order of removal.
    _pages: KVec<Dir<Arc<KVec<u8>>>>,
    _dir: Dir<Arc<List>>,
}

struct Inner {
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
    inner: Mutex<Inner>,
}

impl Discoveries {
    pub(crate) fn new() -> impl PinInit<Self> {
        let inner = Inner {
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

    /// Shows what was found for `request`, in place of the former list of the session.
    ///
    /// # Errors
    ///
    /// `ENODEV` without a directory; `ENOMEM`.
    pub(crate) fn show(&self, session: SessionName<'_>, request: &[u8], found: Found) -> Result {
        let name = CString::try_from_fmt(fmt!("{}", session.as_str()))?;
        let mut text = KVec::with_capacity(request.len(), GFP_KERNEL)?;
        text.extend_from_slice(request, GFP_KERNEL)?;
        let mut inner = self.inner.lock();
        inner.last += 1;
        let list = List {
            number: inner.last,
            request: text,
            portals: found.portals,
            unlisted: found.unlisted,
            pages: found.exports.pages.len(),
        };
        let list = Arc::new(list, GFP_KERNEL)?;
        let lists = &mut inner.lists;
        lists.retain(|other| *other.session != *name);
        if lists.len() >= MAX_LISTS {
            let _ = lists.remove(0);
        }
        lists.reserve(1, GFP_KERNEL)?;
        let parent = inner.parent.as_ref().ok_or(ENODEV)?;
        let dir = Dir::new(parent, fmt!("{}", session.as_str()), list, &FILES)?;
        let mut pages = KVec::with_capacity(found.exports.pages.len(), GFP_KERNEL)?;
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
