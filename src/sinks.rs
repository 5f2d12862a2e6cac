//! Where pages are stored, as flags say it.

use std::{ffi::OsString, path::PathBuf};

use clap::Args;
use tidings_subscriber::{
    CrawlerConfig,
    sink::{SinkConfig, postgres::PostgresConfig},
};

use crate::flags::{DataFlag, parse_bytes};

/// The variable that holds the password of the `PostgreSQL` database, as for `PostgreSQL`'s own programs: what is in a
/// flag can be read by everybody on the machine.
const PASSWORD: &str = "PGPASSWORD";

/// Where pages are stored: in all places that are named.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Where pages are stored (in all places that are named)")]
pub(crate) struct SinkFlags {
    /// An SQL database (`SQLite`): FILE, or pages.db in the data directory [default, if no other
    /// place is named]
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    sqlite: Option<OsString>,

    /// Lines of JSON at the end of FILE; -: standard output
    #[arg(long, value_name = "FILE")]
    jsonl: Option<PathBuf>,

    /// WARC files with what went over the wire, `PREFIX-<time>-<number>.warc.gz`
    #[arg(long, value_name = "PREFIX")]
    warc: Option<PathBuf>,

    /// A WARC file of this size is closed and another begun; a number, or with k, m or g behind it
    #[arg(long, value_name = "BYTES", default_value = "1g", value_parser = parse_bytes)]
    warc_size: u64,

    /// A `PostgreSQL` database, such as `postgres://crawler@db.example.org/pages`; the password is taken from
    /// `PGPASSWORD` in the environment
    #[arg(long, value_name = "URL", value_parser = parse_postgres)]
    postgres: Option<PostgresConfig>,

    /// Run a program for each page, with `PAGE_URL`, `PAGE_PATH` (a file with its body) and more in its
    /// environment; a page is stored when it exits with 0
    #[arg(long, value_name = "COMMAND", value_parser = parse_command)]
    exec: Option<SinkConfig>,
}

impl SinkFlags {
    pub(crate) fn config(&self, data: &DataFlag) -> Vec<SinkConfig> {
        let mut sinks = Vec::new();
        if let Some(file) = &self.sqlite {
            let file = Some(PathBuf::from(file)).filter(|file| !file.as_os_str().is_empty());
            sinks.push(SinkConfig::Sqlite(file.unwrap_or_else(|| data.data.join("pages.db"))));
        }
        if let Some(file) = &self.jsonl {
            let to_stdout = file.as_os_str() == "-";
            sinks.push(if to_stdout {
                SinkConfig::Stdout
            } else {
                SinkConfig::Jsonl(file.clone())
            });
        }
        let warc = self.warc.clone();
        sinks.extend(warc.map(|prefix| SinkConfig::Warc { prefix, bytes_max: self.warc_size }));
        sinks.extend(self.postgres.clone().map(|config| SinkConfig::Postgres(Box::new(config))));
        sinks.extend(self.exec.clone());
        sinks
    }
}

/// Where a crawler stores, for people.
pub(crate) fn places(config: &CrawlerConfig) -> String {
    let places: Vec<_> = config.sinks().iter().map(ToString::to_string).collect();
    places.join(" and ")
}

/// Whether standard output is for pages alone.
pub(crate) fn take_stdout(config: &CrawlerConfig) -> bool {
    config.sinks.iter().any(|sink| matches!(sink, SinkConfig::Stdout))
}

fn parse_postgres(text: &str) -> Result<PostgresConfig, String> {
    let config: PostgresConfig = text.parse().map_err(
        |error: tidings_subscriber::sink::postgres::PostgresConfigError| error.to_string(),
    )?;
    Ok(match std::env::var(PASSWORD) {
        Ok(password) => config.or_password(&password),
        Err(_) => config,
    })
}

fn parse_command(text: &str) -> Result<SinkConfig, String> {
    SinkConfig::exec(text).ok_or_else(|| {
        "name a program, with its arguments behind it; quotes come in pairs".to_owned()
    })
}
