//! Benchmarks with tokens or TLS: the flags, and the broker that is started for them.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::Serialize;

use crate::command::broker_process::{BrokerProcess, DataDir};
use crate::command::flags::CommonFlags;
use crate::{Tidings, TlsClient, openssl};

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

    /// Starts a broker with this protection, and returns how to talk to it.
    pub fn start(
        self,
        program: &Path,
        common: &CommonFlags,
        data: DataDir,
        http: Option<u16>,
    ) -> Result<(BrokerProcess, Tidings)> {
        let mut wire = Tidings::plain(common.sync);
        let mut flags = Vec::new();
        if self.tokens {
            wire.token = Some(token(program, data.path())?);
        }
        if self.tls {
            let files = openssl::create_certificate(data.path())?;
            wire.tls = Some(TlsClient::trusting_only(&files.cert)?);
            flags = vec!["--tls-cert".into(), files.cert, "--tls-key".into(), files.key];
        }
        let processor = common.pin.map(|(server, _)| server);
        let own = BrokerProcess::start(program, data, common.threads, processor, http, &flags)?;
        Ok((own, wire))
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
