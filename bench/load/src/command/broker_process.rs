//! A broker in a process of its own for benchmarks, and its data directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::{Launch, ReadyWhen, Server};

/// A process of `tidings broker`, so that its processor time is separate from that of the load
/// generator. It ends when this value is dropped, and a temporary data directory is removed.
#[derive(Debug)]
pub struct BrokerProcess {
    // Dropped first, so that the process does not write into a directory that is being removed.
    server: Server,
    data: DataDir,
}

impl BrokerProcess {
    /// Starts the process with this number of threads, on this processor, with HTTP at this port,
    /// and with further flags.
    pub fn start(
        program: &Path,
        data: DataDir,
        threads: Option<u16>,
        processor: Option<usize>,
        http: Option<u16>,
        flags: &[PathBuf],
    ) -> Result<Self> {
        let mut launch = Self::launch(program, data.path(), threads, processor)?;
        let http = http.map_or_else(|| "off".to_owned(), |port| port.to_string());
        launch.command.args(["--http", &http]).args(flags);
        let server = Server::start(launch)?;
        Ok(Self { server, data })
    }

    /// The launch without HTTP.
    pub fn launch(
        program: &Path,
        data: &Path,
        threads: Option<u16>,
        processor: Option<usize>,
    ) -> Result<Launch> {
        let mut command = Command::new(program);
        command.args(["broker", "--listen", "127.0.0.1:0", "--data"]).arg(data);
        command.args(threads.map(|threads| format!("--threads={threads}")));
        command.env_remove("TIDINGS_CONFIG");
        Ok(Launch { command, ready: ReadyWhen::PrintsAddress("listening on "), processor })
    }

    /// The process.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// The data directory.
    pub fn data(&self) -> &Path {
        self.data.path()
    }
}

/// A data directory.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    is_temporary: bool,
}

impl DataDir {
    /// This directory, which is kept; or a temporary one in the current directory. `behind` is
    /// appended to the name, so that a process can have several.
    pub fn new(named: Option<&Path>, behind: &str) -> Result<Self> {
        let fresh = || PathBuf::from(format!("tidings-bench-{}", std::process::id()));
        let mut path = named.map_or_else(fresh, Path::to_owned).into_os_string();
        path.push(behind);
        let path = PathBuf::from(path);
        fs::create_dir_all(&path)
            .with_context(|| format!("cannot create the directory {}", path.display()))?;
        Ok(Self { path, is_temporary: named.is_none() })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for DataDir {
    fn drop(&mut self) {
        if self.is_temporary {
            // What cannot be removed can be found by its name.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_directory_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let named = folder.path().join("data");
        drop(DataDir::new(Some(&named), "").unwrap());
        assert!(named.is_dir());
    }
}
