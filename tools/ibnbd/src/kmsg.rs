// SPDX-License-Identifier: GPL-2.0

//! Log lines of our modules in the kernel log.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;

use rustix::fs::OFlags;

use crate::root::Root;

/// A place in the kernel's log; later lines can be read from there.
#[derive(Debug)]
pub struct Mark {
    file: File,
}

const FILE: &str = "/dev/kmsg";

/// One message is not longer.
const MAX_RECORD: usize = 8192;

impl Mark {
    /// The end of the log as it is now; none where it may not be read.
    pub fn now(root: &Root) -> Option<Self> {
        let mut file = open(root)?;
        file.seek(SeekFrom::End(0)).ok()?;
        Some(Self { file })
    }

    /// The lines that our modules have printed since.
    pub fn lines(mut self) -> Vec<String> {
        read(&mut self.file)
    }
}

/// All that our modules have printed, as far as the log has it; none where it may not be read.
pub fn all(root: &Root) -> Option<Vec<String>> {
    Some(read(&mut open(root)?))
}

fn open(root: &Root) -> Option<File> {
    let nonblock = i32::try_from(OFlags::NONBLOCK.bits()).ok()?;
    OpenOptions::new()
        .read(true)
        .custom_flags(nonblock)
        .open(root.real(FILE))
        .ok()
}

fn read(file: &mut File) -> Vec<String> {
    const EPIPE: i32 = 32;
    let mut lines = Vec::new();
    let mut record = vec![0; MAX_RECORD];
    loop {
        match file.read(&mut record) {
            Ok(0) => break,
            Ok(length) => {
                let text =
                    String::from_utf8_lossy(record.get(..length).unwrap_or_default()).into_owned();
                // A plain file, as tests have, gives several records at once.
                lines.extend(text.lines().filter_map(message).map(String::from));
            }
            // Older ones were overwritten meanwhile.
            Err(error) if error.raw_os_error() == Some(EPIPE) => {}
            Err(_) => break,
        }
    }
    lines
}

/// The text of a record, `<priority>,<number>,<time>,<flags>;<text>`, if one of our modules printed
/// it.
fn message(record: &str) -> Option<&str> {
    let (_, text) = record.split_once(';')?;
    let (module, _) = text.split_once(':')?;
    crate::host::MODULES.contains(&module).then_some(text)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_record_does_harm(text in "\\PC*|[0-9]{1,2},[0-9]{1,9},[0-9]{1,9},-;(ibnbd_client|ibtrs_core|x)?:? ?\\PC{0,40}") {
            if let Some(found) = message(&text) {
                prop_assert!(text.ends_with(found));
                prop_assert!(crate::host::MODULES.iter().any(|module| found.starts_with(module)));
            }
        }
    }

    #[test]
    fn only_lines_of_ours_count() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("dev")).unwrap();
        let log = "6,1,5,-;ibnbd_client: s: connected\n SUBSYSTEM=x\n3,2,6,-;other: x\nibnbd_client: no record\n";
        std::fs::write(folder.path().join("dev/kmsg"), log).unwrap();
        let root = Root::new(folder.path());
        assert_eq!(all(&root).unwrap(), ["ibnbd_client: s: connected"]);
        assert!(Mark::now(&root).unwrap().lines().is_empty());
    }
}
