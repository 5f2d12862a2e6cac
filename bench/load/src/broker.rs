//! A broker in a process of its own for benchmarks, and its data directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use tempfile::TempDir;

use crate::{ReadyWhen, Server, Target, WireProtocol};

/// A running broker, so that its processor time is separate from that of the load generator. It
/// ends when this value is dropped, and a temporary data directory is removed.
pub struct Broker {
    // Dropped first, so that the process does not write into a directory that is being removed.
    /// The process.
    pub server: Server,
    /// Its protocol.
    pub wire: Box<dyn WireProtocol>,
    /// Its data.
    pub data: DataDir,
}

impl Broker {
    /// The topic with this name.
    pub fn target<'a>(&'a self, topic: &'a str, payload_bytes: usize) -> Target<'a> {
        let server = Some(&self.server);
        Target {
            wire: self.wire.as_ref(),
            address: self.server.address(),
            topic,
            payload_bytes,
            server,
        }
    }
}

/// `tidings broker` with this data directory, and the sign that it listens. It serves no HTTP.
pub fn tidings(program: &Path, data: &DataDir) -> (Command, ReadyWhen) {
    let mut command = Command::new(program);
    command.args(["broker", "--listen", "127.0.0.1:0", "--http", "off", "--data"]);
    command.arg(data.path()).env_remove("TIDINGS_CONFIG");
    (command, ReadyWhen::PrintsAddress("listening on "))
}

/// A data directory.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    /// Removed when this value is dropped.
    _temporary: Option<TempDir>,
}

impl DataDir {
    /// This directory, which is kept, with `suffix` at the end of its name, so that a process can
    /// have several; or a temporary one in the current directory.
    pub fn new(named: Option<&Path>, suffix: &str) -> Result<Self> {
        let Some(named) = named else { return Self::temporary(Path::new(".")) };
        let mut path = named.as_os_str().to_owned();
        path.push(suffix);
        let path = PathBuf::from(path);
        fs::create_dir_all(&path)
            .with_context(|| format!("cannot create the directory {}", path.display()))?;
        Ok(Self { path, _temporary: None })
    }

    /// A temporary directory in `parent`.
    pub fn temporary(parent: &Path) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("tidings-bench-").tempdir_in(parent);
        let dir =
            dir.with_context(|| format!("cannot create a directory in {}", parent.display()))?;
        Ok(Self { path: dir.path().to_owned(), _temporary: Some(dir) })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_directory_is_kept_and_a_temporary_one_removed() {
        let folder = tempfile::tempdir().unwrap();
        drop(DataDir::new(Some(&folder.path().join("data")), "-2").unwrap());
        drop(DataDir::temporary(folder.path()).unwrap());
        let left = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
        assert_eq!(left.collect::<Vec<_>>(), ["data-2"]);
    }
}
