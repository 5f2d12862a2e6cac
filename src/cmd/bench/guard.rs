//! Brokers that let in who shows a token, or that encrypt: how a benchmark has one, and what it says to it.

use std::{path::Path, process::Command};

use anyhow::{Context, ensure};
use clap::Args;
use tidings_bench::{Tidings, Trust, openssl};

use super::flags::Common;
use crate::own_broker::{DataDir, OwnBroker};

/// What everybody may do who shows the token: what a benchmark does, and nothing more. With the right to do everything
/// nothing would be asked.
const RIGHTS: [&str; 3] = ["pub:bench-*", "sub:bench-*", "admin"];

/// How its own broker guards itself.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct Guard {
    /// Have everybody show a token; fan-out: in turns with a broker that lets everybody in
    #[arg(long, conflicts_with_all = ["broker", "sse"])]
    pub(super) tokens: bool,

    /// Encrypt everything; fan-out: in turns with a broker that does not
    #[arg(long, conflicts_with_all = ["broker", "sse"])]
    pub(super) tls: bool,
}

impl Guard {
    /// Whether it does at all.
    pub(super) fn is_some(self) -> bool {
        self.tokens || self.tls
    }

    /// For people, behind what is measured.
    pub(super) fn title(self) -> &'static str {
        match (self.tokens, self.tls) {
            (false, false) => "",
            (true, false) => ", with tokens",
            (false, true) => ", encrypted",
            (true, true) => ", encrypted, with tokens",
        }
    }

    /// Starts one that does, with data beside those of the other one.
    pub(super) fn start_beside(self, common: &Common) -> anyhow::Result<(OwnBroker, Tidings)> {
        self.start(common, DataDir::new(common.data.as_deref(), "-guarded")?, None)
    }

    /// Starts one, and says how it is spoken to.
    pub(super) fn start(
        self,
        common: &Common,
        data: DataDir,
        http: Option<u16>,
    ) -> anyhow::Result<(OwnBroker, Tidings)> {
        let mut wire = Tidings::open(common.sync);
        let mut flags = Vec::new();
        if self.tokens {
            wire.token = Some(token(data.path())?);
        }
        if self.tls {
            let files = openssl::certificate(data.path())?;
            wire.trust = Some(Trust::only(&files.cert)?);
            flags = vec!["--tls-cert".into(), files.cert, "--tls-key".into(), files.key];
        }
        let processor = common.pin.map(|(server, _)| server);
        let own = OwnBroker::start(data, common.threads, processor, http, &flags)?;
        Ok((own, wire))
    }
}

/// A new token for the broker with these data, made as people make one.
fn token(data: &Path) -> anyhow::Result<String> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let mut command = Command::new(program);
    command.args(["token", "create", "bench", "--data"]).arg(data).env_remove("TIDINGS_CONFIG");
    command.args(RIGHTS.iter().flat_map(|right| ["--allow", right]));
    let ended = command.output().context("cannot make a token")?;
    let said = String::from_utf8_lossy(&ended.stderr);
    ensure!(ended.status.success(), "cannot make a token: {said}");
    Ok(String::from_utf8(ended.stdout)?.trim_end().to_owned())
}
