//! The flags for the places where pages are stored.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::Args;
use tidings_subscriber::CrawlerConfig;
use tidings_subscriber::sink::SinkConfig;

use crate::flags::{DataFlag, parse_bytes};
use crate::terminal::failure::Failure;

/// The places where pages are stored; all named places are used.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Where pages are stored (in all places that are named)")]
pub(crate) struct SinkFlags {
    /// Store pages in an `SQLite` database: FILE, or pages.db in the data directory [default
    /// without another place]
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
    #[cfg(feature = "postgres")]
    #[arg(long, value_name = "URL", value_parser = parse_postgres)]
    postgres: Option<SinkConfig>,

    /// Also keep the source of pages, compressed, in the table `bodies` of each database
    ///
    /// Each content is stored once. Bodies of more than 8 MiB are not kept.
    #[arg(long)]
    pub(crate) bodies: bool,

    /// Run a program for each page, with `PAGE_URL`, `PAGE_PATH` (file with the body) and more in
    /// its environment
    ///
    /// A page is stored when the program exits with 0.
    #[arg(long, value_name = "COMMAND", value_parser = parse_command)]
    exec: Option<SinkConfig>,

    /// With --exec: also pass these variables; PATH, HOME, USER, LOGNAME, LANG, LANGUAGE, LC_*, TZ
    /// and TMPDIR are always passed
    #[arg(long, value_name = "NAME,..", value_delimiter = ',', value_parser = parse_variable)]
    exec_env: Vec<String>,
}

impl SinkFlags {
    /// The variables that programs receive.
    pub(crate) fn exec_variables(&self) -> Vec<String> {
        self.exec_env.clone()
    }

    /// Whether programs are run, which may do anything.
    pub(crate) fn run_programs(&self) -> bool {
        self.exec.is_some()
    }

    /// Fails if bodies are to be kept without a database.
    pub(crate) fn check(&self, data: &DataFlag) -> Result<(), Failure> {
        let sinks = self.config(data);
        if self.bodies && !sinks.is_empty() && !sinks.iter().any(SinkConfig::is_database) {
            let text = "--bodies: the source of pages is kept in databases only; add --sqlite, or \
                        store pages in another database";
            return Err(Failure::Usage(text.to_owned()));
        }
        Ok(())
    }

    /// The directories of output files.
    pub(crate) fn directories(&self) -> Vec<PathBuf> {
        let sqlite = self.sqlite.iter().map(PathBuf::from);
        let files = sqlite.chain(self.jsonl.clone()).chain(self.warc.clone());
        let named = files.filter(|file| !file.as_os_str().is_empty() && file.as_os_str() != "-");
        named.map(|file| parent_dir(&file)).collect()
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
        #[cfg(feature = "postgres")]
        sinks.extend(self.postgres.clone());
        sinks.extend(self.exec.clone());
        sinks
    }
}

/// The places of a crawler, for messages.
pub(crate) fn describe_sinks(config: &CrawlerConfig) -> String {
    let places: Vec<_> = config.sinks().iter().map(ToString::to_string).collect();
    places.join(" and ")
}

/// Whether only pages are written to standard output.
pub(crate) fn use_stdout(config: &CrawlerConfig) -> bool {
    config.sinks.iter().any(|sink| matches!(sink, SinkConfig::Stdout))
}

#[cfg(feature = "postgres")]
fn parse_postgres(text: &str) -> Result<SinkConfig, String> {
    use tidings_subscriber::sink::postgres::{PostgresConfig, PostgresConfigError};

    /// The same variable as for the programs of `PostgreSQL`, since every user of the machine can
    /// read flags.
    const PASSWORD: &str = "PGPASSWORD";

    let config: PostgresConfig =
        text.parse().map_err(|error: PostgresConfigError| error.to_string())?;
    let config = match std::env::var(PASSWORD) {
        Ok(password) => config.or_password(&password),
        Err(_) => config,
    };
    Ok(SinkConfig::Postgres(Box::new(config)))
}

/// The directory of a file.
pub(crate) fn parent_dir(file: &Path) -> PathBuf {
    let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or(Path::new(".")).to_owned()
}

/// Whether the directory of the file that this flag names exists.
pub(crate) fn check_parent(flag: &str, file: &Path) -> Result<(), Failure> {
    let dir = parent_dir(file);
    if dir.is_dir() {
        return Ok(());
    }
    let (file, dir) = (file.display(), dir.display());
    Err(Failure::Usage(format!("{flag} {file}: {dir} is no directory")))
}

/// Parses the name of a variable for programs. Variables of this program are excluded, because one
/// of them holds a token.
pub(crate) fn parse_variable(name: &str) -> Result<String, String> {
    if name.is_empty() || name.contains(['=', '\0']) {
        return Err("expected names of variables, separated by commas".to_owned());
    }
    if name.starts_with("TIDINGS_") {
        return Err("variables that begin with TIDINGS_ cannot be passed on".to_owned());
    }
    Ok(name.to_owned())
}

fn parse_command(text: &str) -> Result<SinkConfig, String> {
    SinkConfig::exec(text)
        .ok_or_else(|| "expected a program and its arguments, with quotes in pairs".to_owned())
}
