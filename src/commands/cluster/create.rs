//! `tidings cluster create`

#![expect(clippy::disallowed_methods, reason = "tries again while servers elect")]

use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use jiff::Timestamp;
use rustls::crypto::aws_lc_rs;
use tidings_cluster::{CommunityId, Stamp};
use tokio::time::sleep;

use super::CommunityArgs;
use crate::flags::parse_bytes;
use crate::services::nats;
use crate::terminal::failure::Failure;
use crate::terminal::output::Console;

const ELECTION_MAX: Duration = Duration::from_secs(30);

const AGAIN: Duration = Duration::from_millis(500);

/// The flags of `tidings cluster create`.
#[derive(Debug, Args)]
pub(crate) struct CreateArgs {
    #[command(flatten)]
    community: CommunityArgs,

    /// Bytes of the log on each server at most; k, m and g are units
    ///
    /// What all brokers have is removed when it is an eighth full. So it bounds how long a broker may
    /// be away before it needs a copy of another one.
    #[arg(long, value_name = "BYTES", default_value = "8g", value_parser = parse_log_bytes)]
    log_bytes: i64,
}

fn parse_log_bytes(text: &str) -> Result<i64, String> {
    let bytes = i64::try_from(parse_bytes(text)?).ok();
    bytes.filter(|bytes| *bytes >= 64 << 20).ok_or_else(|| "expected at least 64m".to_owned())
}

/// Makes it.
pub(super) async fn run(args: CreateArgs) -> Result<(), Failure> {
    let CreateArgs { community, log_bytes } = args;
    let servers = community.connect().await?;
    servers.check_sync(true).await?;
    let mut id = [0; 16];
    let random = aws_lc_rs::default_provider().secure_random;
    random.fill(&mut id).ok().context("the system gives no random bytes")?;
    let stamp = Stamp { moment: 0, unix_ms: Timestamp::now().as_millisecond() };
    let began = Instant::now();
    let created = loop {
        match servers.stream.create(CommunityId(id), log_bytes, stamp).await {
            // Servers that have just begun elect first.
            Err(_) if began.elapsed() < ELECTION_MAX => sleep(AGAIN).await,
            created => break created,
        }
    };
    let name = &community.name;
    if created.map_err(|error| nats::failure(&error))? {
        let text = format!(
            "created {name}; now start its brokers: tidings broker --cluster .. --community {name}"
        );
        Console::new().line(&text)
    } else {
        Err(Failure::failed(format!("{name} exists")))
    }
}
