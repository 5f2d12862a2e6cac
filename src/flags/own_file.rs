//! Files that decide where this user's token goes.

use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Permission bits with which others could change the file.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// The text of a file that only this user or root can change; `None` if others can, too.
pub(crate) fn read_own(path: &Path) -> io::Result<Option<String>> {
    // What is checked is what is read, also if the path is replaced meanwhile.
    let mut file = File::open(path)?;
    if !is_own(&file.metadata()?) {
        return Ok(None);
    }
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    Ok(Some(text))
}

/// Whether this is a directory, and no link to one, in which only this user or root can replace
/// files.
pub(crate) fn is_own_directory(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_dir() && is_own(&found))
}

fn is_own(found: &Metadata) -> bool {
    let is_ours = [0, rustix::process::geteuid().as_raw()].contains(&found.uid());
    is_ours && found.mode() & WRITABLE_BY_OTHERS == 0
}
