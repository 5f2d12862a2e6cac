//! Files that are there as a whole or not at all.

use std::{
    ffi::OsString,
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

/// Replaces a file, for its owner only, and has it on the disk before the old one is gone.
pub(crate) fn replace(path: &Path, text: &str) -> io::Result<()> {
    let mut fresh = OsString::from(path);
    fresh.push(".new");
    let fresh = PathBuf::from(fresh);
    // One that was left behind may be readable for others.
    let _ = fs::remove_file(&fresh);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&fresh, path)
}
