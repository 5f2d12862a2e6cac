//! Where pages are stored, as flags say it.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use clap::Args;
use tidings_subscriber::{CrawlerConfig, sink::SinkConfig};

use crate::flags::{DataFlag, parse_bytes};

/// Where pages are stored: in all places that are named.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Where pages are stored (in all places that are named)")]
pub(crate) struct SinkFlags {
    /// Store pages in an `SQLite` database: FILE, or pages.db in the data directory [default without
    /// another place]
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    sqlite: Option<OsString>,

    /// Append pages to FILE as JSON lines; - is standard output
    #[arg(long, value_name = "FILE")]
    jsonl: Option<PathBuf>,

    /// Store requests and responses in WARC files named `PREFIX-<time>-<number>.warc.gz`
    #[arg(long, value_name = "PREFIX")]
    warc: Option<PathBuf>,

    /// Begin a new WARC file at this size; k, m and g are units
    #[arg(long, value_name = "BYTES", default_value = "1g", value_parser = parse_bytes)]
    warc_size: u64,

    /// Store pages in a database such as `postgres://crawler@db.example.org/pages`; `PGPASSWORD`
    /// holds the password
    #[arg(long, value_name = "URL", value_parser = parse_postgres)]
    postgres: Option<SinkConfig>,

    /// Run a program for each page, with `PAGE_URL`, `PAGE_PATH` (file with the body) and more in
    /// its environment
    ///
    /// A page is stored when the program exits with 0.
    #[arg(long, value_name = "COMMAND", value_parser = parse_command)]
    exec: Option<SinkConfig>,

    /// With --exec: pass these variables too, besides PATH, HOME, LANG, LC_*, TZ, USER and TMPDIR
    #[arg(long, value_name = "NAME,..", value_delimiter = ',', value_parser = parse_variable)]
    exec_env: Vec<String>,
}

impl SinkFlags {
    /// Variables that programs are given.
    pub(crate) fn exec_variables(&self) -> Vec<String> {
        self.exec_env.clone()
    }

    /// Whether a program is run, which may do anything.
    pub(crate) fn run_programs(&self) -> bool {
        self.exec.is_some()
    }

    /// Directories in which files come into being.
    pub(crate) fn directories(&self) -> Vec<PathBuf> {
        let sqlite = self.sqlite.iter().map(PathBuf::from);
        let files = sqlite.chain(self.jsonl.clone()).chain(self.warc.clone());
        let named = files.filter(|file| !file.as_os_str().is_empty() && file.as_os_str() != "-");
        named.map(|file| parent(&file)).collect()
    }

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
        sinks.extend(self.postgres.clone());
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

#[cfg(feature = "postgres")]
fn parse_postgres(text: &str) -> Result<SinkConfig, String> {
    use tidings_subscriber::sink::postgres::{PostgresConfig, PostgresConfigError};

    /// As for `PostgreSQL`'s own programs: every user of the machine can read a flag.
    const PASSWORD: &str = "PGPASSWORD";

    let config: PostgresConfig =
        text.parse().map_err(|error: PostgresConfigError| error.to_string())?;
    let config = match std::env::var(PASSWORD) {
        Ok(password) => config.or_password(&password),
        Err(_) => config,
    };
    Ok(SinkConfig::Postgres(Box::new(config)))
}

/// A build without the feature keeps the flag, so that it can say what is missing.
#[cfg(not(feature = "postgres"))]
fn parse_postgres(_text: &str) -> Result<SinkConfig, String> {
    Err("this tidings was built without PostgreSQL; build it with `--features postgres`, or \
         store pages with --sqlite, --jsonl, --warc or --exec"
        .to_owned())
}

/// The directory in which a file is.
pub(crate) fn parent(file: &Path) -> PathBuf {
    let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or(Path::new(".")).to_owned()
}

/// A variable that a program may be given. What this program is told is told to nobody else: a token is among it.
pub(crate) fn parse_variable(name: &str) -> Result<String, String> {
    if name.is_empty() || name.contains(['=', '\0']) {
        return Err("write names of variables, with commas between them".to_owned());
    }
    if name.starts_with("TIDINGS_") {
        return Err("what begins with TIDINGS_ is for tidings alone".to_owned());
    }
    Ok(name.to_owned())
}

fn parse_command(text: &str) -> Result<SinkConfig, String> {
    SinkConfig::exec(text).ok_or_else(|| {
        "name a program, with its arguments behind it; quotes come in pairs".to_owned()
    })
}

#[cfg(all(test, not(feature = "postgres")))]
mod tests {
    use clap::{Args, Command};

    use super::*;

    #[test]
    fn a_build_without_postgresql_says_what_to_do() {
        let command = SinkFlags::augment_args(Command::new("tidings"));
        let words = ["tidings", "--postgres", "postgres://crawler@db.example.org/pages"];
        let error = command.try_get_matches_from(words).unwrap_err().to_string();
        for part in ["postgres://crawler@db.example.org/pages", "--features postgres", "--sqlite"] {
            assert!(error.contains(part), "{part}: {error}");
        }
    }
}
