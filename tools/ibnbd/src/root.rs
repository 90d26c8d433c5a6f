// SPDX-License-Identifier: GPL-2.0

//! Files below a root.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::retry_on_intr;

/// The largest size of a file of sysfs. One has a page; the largest of ours, several.
const MAX_FILE: usize = 1 << 20;

/// The size of most of them is far below a page.
const PAGE: usize = 4096;

/// Where the machine's files begin.
#[derive(Clone, Debug)]
pub struct Root {
    base: PathBuf,
    #[cfg(test)]
    pub(crate) opened: std::rc::Rc<std::cell::RefCell<Vec<String>>>,
}

impl Default for Root {
    fn default() -> Self {
        Self::new("/")
    }
}

impl Root {
    /// A root at that folder; `/` on a machine.
    pub fn new(base: impl Into<PathBuf>) -> Self {
        Self {
            base: base.into(),
            #[cfg(test)]
            opened: std::rc::Rc::default(),
        }
    }

    /// Whether it is the machine itself, and not a folder that looks like one.
    pub fn is_machine(&self) -> bool {
        self.base == Path::new("/")
    }

    /// Where a file really is. `path` is written as on a machine, from `/` on.
    pub fn real(&self, path: &str) -> PathBuf {
        self.base.join(path.trim_start_matches('/'))
    }

    /// The text of a file, with one opening.
    ///
    /// # Errors
    ///
    /// The system's; `InvalidData` for what is no text (UTF-8) or longer than a MiB.
    pub fn read(&self, path: &str) -> io::Result<String> {
        #[cfg(test)]
        self.opened.borrow_mut().push(path.to_owned());
        text(File::open(self.real(path))?, path.starts_with("/sys/"))
    }

    /// The lines of a file in which any user can have bytes of their own, of any length. Those that
    /// are no text (UTF-8) are left out.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn lines(&self, path: &str) -> io::Result<Vec<String>> {
        let bytes = fs::read(self.real(path))?;
        let lines = bytes.split(|byte| *byte == b'\n').map(<[u8]>::to_vec);
        Ok(lines
            .filter_map(|line| String::from_utf8(line).ok())
            .collect())
    }

    /// Opens a folder, to read several files of it.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn open_folder(&self, path: &str) -> io::Result<Folder> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Folder {
            opened: rustix::fs::open(self.real(path), flags, Mode::empty())?,
            path: path.to_owned(),
        })
    }

    /// The text of a file of a folder, with one opening.
    ///
    /// # Errors
    ///
    /// As of [`Self::read`].
    pub fn read_in(&self, folder: &Folder, name: &str) -> io::Result<String> {
        #[cfg(test)]
        self.opened.borrow_mut().push(folder.file(name));
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let file =
            retry_on_intr(|| rustix::fs::openat(&folder.opened, name, flags, Mode::empty()))?;
        text(file.into(), folder.path.starts_with("/sys/"))
    }

    /// The names in a folder, sorted; numbers in them count as numbers.
    ///
    /// Names that are no UTF-8 are left out: the kernel makes none.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        let mut names: Vec<String> = fs::read_dir(self.real(folder))?
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect();
        names.sort_by_cached_key(|name| natural(name));
        Ok(names)
    }

    /// The same, and none where there is no such folder.
    ///
    /// # Errors
    ///
    /// The system's, other than that.
    pub fn list_if_any(&self, folder: &str) -> io::Result<Vec<String>> {
        match self.list(folder) {
            Err(error) if is_gone(&error) => Ok(Vec::new()),
            other => other,
        }
    }

    /// Whether there is such a file or folder.
    pub fn exists(&self, path: &str) -> bool {
        self.real(path).exists()
    }

    /// Whether there is a folder of that name, or a link to one.
    pub fn is_folder(&self, path: &str) -> bool {
        self.real(path).is_dir()
    }

    /// Makes a folder in a folder that is there.
    ///
    /// # Errors
    ///
    /// The system's, which in configfs is the driver's answer.
    pub fn make_folder(&self, path: &str) -> io::Result<()> {
        fs::create_dir(self.real(path))
    }

    /// Removes a folder that is empty, or one of configfs.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn remove_folder(&self, path: &str) -> io::Result<()> {
        fs::remove_dir(self.real(path))
    }

    /// Makes a link to a folder. It has the whole path, as configfs begins a relative one at the
    /// working directory.
    ///
    /// # Errors
    ///
    /// The system's, which in configfs is the driver's answer.
    pub fn link(&self, path: &str, to: &str) -> io::Result<()> {
        symlink(self.real(to), self.real(path))
    }

    /// Removes a link.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn unlink(&self, path: &str) -> io::Result<()> {
        fs::remove_file(self.real(path))
    }

    /// The last part of what a link points to.
    pub fn link_name(&self, path: &str) -> Option<String> {
        let target = fs::read_link(self.real(path)).ok()?;
        target.file_name().and_then(OsStr::to_str).map(String::from)
    }

    /// Writes to a file that is there, in one piece, as sysfs wants it.
    ///
    /// # Errors
    ///
    /// The system's, which is the driver's answer.
    pub fn write(&self, path: &str, text: &str) -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).open(self.real(path))?;
        let written = file.write(text.as_bytes())?;
        if written == text.len() {
            Ok(())
        } else {
            Err(io::Error::new(
                io::ErrorKind::WriteZero,
                "the kernel took a part of it only",
            ))
        }
    }
}

/// A folder that is open. Its files are found without the way to it, and belong to one device even if another
/// one takes the name.
pub struct Folder {
    path: String,
    opened: OwnedFd,
}

impl Folder {
    /// The whole name of a file in it.
    pub fn file(&self, name: &str) -> String {
        [&self.path, "/", name].concat()
    }
}

fn text(file: File, sysfs: bool) -> io::Result<String> {
    let bytes = read_whole(file, sysfs)?;
    if bytes.len() > MAX_FILE {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "too long"));
    }
    String::from_utf8(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "not UTF-8"))
}

/// The contents of a file, up to a byte more than it may have. A file of sysfs gives all that it has at once,
/// so that one that gave less than was asked for is not asked again.
fn read_whole(file: File, sysfs: bool) -> io::Result<Vec<u8>> {
    let mut page = [MaybeUninit::uninit(); PAGE];
    let (first, rest) = loop {
        match rustix::io::read(&file, &mut page) {
            Err(rustix::io::Errno::INTR) => {}
            other => break other?,
        }
    };
    let is_all = sysfs && !rest.is_empty();
    let mut bytes = first.to_vec();
    if !is_all {
        let more = (MAX_FILE + 1).saturating_sub(bytes.len());
        file.take(more as u64).read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}

/// Whether an error says that the file is not there, or goes just now.
pub fn is_gone(error: &io::Error) -> bool {
    const ENODEV: i32 = 19;
    error.kind() == io::ErrorKind::NotFound
        || error.kind() == io::ErrorKind::NotADirectory
        || error.raw_os_error() == Some(ENODEV)
}

/// A key that sorts `ibnbd10` after `ibnbd9`.
fn natural(name: &str) -> Vec<(String, u64)> {
    let mut key = Vec::new();
    let mut rest = name;
    while !rest.is_empty() {
        let digits = rest
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(rest.len());
        let (word, tail) = rest.split_at(digits);
        let end = tail
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(tail.len());
        let (number, tail) = tail.split_at(end);
        key.push((word.to_owned(), number.parse().unwrap_or(u64::MAX)));
        rest = tail;
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_sort_as_numbers() {
        let mut names = vec!["ibnbd10", "ibnbd9", "ibnbd", "a2b10", "a2b9"];
        names.sort_by_cached_key(|name| natural(name));
        assert_eq!(names, ["a2b9", "a2b10", "ibnbd9", "ibnbd10", "ibnbd"]);
    }

    #[test]
    fn what_is_too_long_or_no_text_is_no_value() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("huge"), vec![b'x'; MAX_FILE + 1]).unwrap();
        fs::write(folder.path().join("odd"), b"\xff\xfe").unwrap();
        let root = Root::new(folder.path());
        for name in ["/huge", "/odd"] {
            let error = root.read(name).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        }
    }

    #[test]
    fn what_takes_several_readings_is_read_whole() {
        let folder = tempfile::tempdir().unwrap();
        let sysfs = folder.path().join("sys");
        fs::create_dir(&sysfs).unwrap();
        let root = Root::new(folder.path());
        for length in [0, 4095, 4096, 4097, 3 * 4096, MAX_FILE] {
            for name in ["/sys/x", "/x"] {
                fs::write(root.real(name), vec![b'x'; length]).unwrap();
                assert_eq!(root.read(name).unwrap().len(), length, "{name}");
            }
        }
    }

    #[test]
    fn a_write_makes_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let error = Root::new(folder.path()).write("/x", "1").unwrap_err();
        assert!(is_gone(&error));
    }
}
