//! Benchmarks with tokens or TLS: the flags, and the broker that is started for them.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::Serialize;

use crate::broker::{self, Broker, DataDir};
use crate::command::flags::CommonFlags;
use crate::{Server, Tidings, TlsClient, encryption};

/// The permissions of the token: only what a benchmark needs. With all permissions the broker would
/// skip the check.
const PERMISSIONS: [&str; 3] = ["pub:bench-*", "sub:bench-*", "admin"];

/// The protection of the broker that is started.
#[derive(Debug, Clone, Copy, Default, Args, Serialize)]
pub struct ProtectionFlags {
    /// Log in with a token; fan-out compares with a broker without login
    #[arg(long, conflicts_with = "broker")]
    pub tokens: bool,

    /// Use TLS; fan-out compares with a broker without TLS
    #[arg(long, conflicts_with = "broker")]
    pub tls: bool,
}

impl ProtectionFlags {
    /// Whether any protection is on.
    pub fn is_some(self) -> bool {
        self.tokens || self.tls
    }

    /// The protection in words, for the title.
    pub fn title(self) -> &'static str {
        match (self.tokens, self.tls) {
            (false, false) => "",
            (true, false) => ", with tokens",
            (false, true) => ", encrypted",
            (true, true) => ", encrypted, with tokens",
        }
    }

    /// Starts a broker with this protection. `suffix` is appended to the name of its data
    /// directory.
    pub fn start(self, program: &Path, common: &CommonFlags, suffix: &str) -> Result<Broker> {
        let data = DataDir::new(common.data.as_deref(), suffix)?;
        let mut wire = Tidings::plain(common.sync);
        let (mut command, ready) = broker::tidings(program, &data);
        command.args(common.threads.map(|threads| format!("--threads={threads}")));
        if self.tokens {
            wire.token = Some(token(program, data.path())?);
        }
        if self.tls {
            let files = encryption::create_certificate(data.path())?;
            wire.tls = Some(TlsClient::trusting_only(&files.cert)?);
            command.arg("--tls-cert").arg(files.cert).arg("--tls-key").arg(files.key);
        }
        let server = Server::start(command, ready, common.pin.map(|(server, _)| server))?;
        Ok(Broker { server, wire: Box::new(wire), data })
    }
}

/// Creates a token for the broker with this data directory, as an operator would.
fn token(program: &Path, data: &Path) -> Result<String> {
    let mut command = Command::new(program);
    command.args(["token", "create", "bench", "--data"]).arg(data).env_remove("TIDINGS_CONFIG");
    command.args(PERMISSIONS.iter().flat_map(|right| ["--allow", right]));
    let ended = command.output().context("cannot create a token")?;
    let stderr = String::from_utf8_lossy(&ended.stderr);
    ensure!(ended.status.success(), "cannot create a token: {stderr}");
    Ok(String::from_utf8(ended.stdout)?.trim_end().to_owned())
}
