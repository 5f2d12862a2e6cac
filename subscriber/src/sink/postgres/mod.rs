//! A `PostgreSQL` database: one row per page of a pass, in the table `pages`, with the names of all
//! sinks.
//!
//! A batch is one statement with the pages as JSON, as in a file of JSON lines; the server turns
//! them into rows. Pages wait while a server is lost or does not answer in time. Keepalive probes
//! detect a lost machine; and a batch has a time limit in any case.
//!
//! # Schema
//!
//! See `CREATE`; the table `tidings_schema` has its version. Tables of another version are refused,
//! never changed. `search_path` decides where the tables are.

#![expect(
    clippy::disallowed_methods,
    reason = "owns a connection, and waits for it with a time limit"
)]

use std::collections::HashMap;
use std::error::Error;
use std::str::FromStr;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use tidings_egress::connect::{client_config, system_roots};
use tidings_egress::failure::one_line;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Config, Transaction};
use tokio_postgres_rustls::MakeRustlsConnect;
use tokio_util::task::AbortOnDropHandle;

use super::bodies::{BodyCompressor, ENCODING};
use super::row::PageRow;
use super::{OpenError, Sink, StoreError};
use crate::report::{PageId, PageRecord};
use crate::sink::STOP_CLOSE;

/// How long a `PostgreSQL` server may take to accept the login.
const POSTGRES_CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// .. and to store a batch; then the connection is closed.
const POSTGRES_STATEMENT_TIMEOUT: Duration = Duration::from_secs(30);
/// A server that has not answered after this counts as lost, connecting included. Later than the
/// two limits above, so that the server's own error arrives first.
const POSTGRES_BATCH_TIMEOUT: Duration = Duration::from_secs(45);
/// Keepalive interval of an idle connection: without it a lost server machine would go unnoticed
/// between batches for hours.
const POSTGRES_KEEPALIVE: Duration = Duration::from_secs(10);
/// Unanswered keepalive probes in a row after which the machine counts as lost.
const POSTGRES_KEEPALIVE_TRIES: u32 = 3;

/// The version of the schema.
const VERSION: i32 = 1;

const CREATE: &str = "
    CREATE TABLE pages (
        page text PRIMARY KEY,           -- group.since.entry; every attempt at it is this row
        url text NOT NULL,
        outcome text NOT NULL,           -- done, redirect, failed, robots, trap, retry
        reason text,                     -- why, as a word of a closed list
        error text,                      -- why, for people
        status integer,                  -- of HTTP; NULL without an answer
        fetched_at timestamptz NOT NULL, -- when the answer had ended
        duration_ms bigint NOT NULL,
        bytes bigint NOT NULL,           -- of the body, decoded
        content_type text,
        hash text,                       -- BLAKE3 of the decoded body, hexadecimal
        etag text,
        last_modified text,
        remote text,                     -- address and port of who answered
        redirect text,                   -- where it leads
        canonical text,                  -- what the page says is its URL
        title text,
        noindex boolean NOT NULL,        -- not to be shown by search engines
        job text,
        pass bigint,
        depth bigint,
        task text NOT NULL,              -- group:run.entry, as in the broker's answers
        attempt bigint NOT NULL,         -- the highest attempt wins
        links jsonb NOT NULL,            -- an array of URLs, in the order of the page
        nofollow jsonb,                  -- an array: positions among the links, from 0
        rendered_hash text,              -- BLAKE3 of the rendered HTML, hexadecimal; also a key of bodies
        render jsonb,                    -- what a browser made of the page; NULL if none was asked
        item text,                       -- of the event that announced the page
        source text                      -- of that event
    );
    CREATE INDEX pages_by_job ON pages (job, pass);
    CREATE TABLE bodies (
        hash text PRIMARY KEY,           -- as in pages: BLAKE3 of the decoded body, hexadecimal
        encoding text NOT NULL,          -- of the column body: gzip
        bytes bigint NOT NULL,           -- of the body, decoded
        body bytea NOT NULL
    );
    -- They are compressed already.
    ALTER TABLE bodies ALTER COLUMN body SET STORAGE EXTERNAL";

/// The key of the lock under which one process at a time changes the schema. An arbitrary number.
const LOCK: i64 = 0x0074_6964_696e_6773;

/// The columns of the table, with their types in the JSON of a batch.
const COLUMNS: &str = "page text, url text, outcome text, reason text, error text, status integer, \
    fetched_at timestamptz, duration_ms bigint, bytes bigint, content_type text, hash text, \
    etag text, last_modified text, remote text, redirect text, canonical text, title text, \
    noindex boolean, job text, pass bigint, depth bigint, task text, attempt bigint, links jsonb, \
    nofollow jsonb, rendered_hash text, render jsonb, item text, source text";

/// Stores a batch. A later attempt is never replaced by an earlier one.
static UPSERT: LazyLock<String> = LazyLock::new(|| {
    let names = || COLUMNS.split(", ").filter_map(|column| column.split(' ').next());
    let list = names().collect::<Vec<_>>().join(", ");
    let values = list.replace("noindex", "coalesce(noindex, false)");
    let updates = names().filter(|name| *name != "page");
    let updates = updates.map(|name| format!("{name} = excluded.{name}")).collect::<Vec<_>>();
    let updates = updates.join(", ");
    format!(
        "INSERT INTO pages AS old ({list})
        SELECT {values} FROM json_to_recordset($1::text::json) AS new ({COLUMNS})
        ON CONFLICT (page) DO UPDATE SET {updates}
        WHERE (excluded.attempt, excluded.fetched_at) >= (old.attempt, old.fetched_at)"
    )
});

/// Stores a body that the table does not have.
const INSERT_BODY: &str = "
    INSERT INTO bodies (hash, encoding, bytes, body) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING";

const BODIES_CREATED: &str = "
    SELECT (extract(epoch FROM applied_at) * 1000000)::bigint FROM tidings_schema";

/// The server's address and the login.
#[derive(Clone, Debug)]
pub struct PostgresConfig(Config);

/// The text is not the address of a database.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "not a PostgreSQL address: {reason}; expected one such as postgres://crawler@db.example.org/pages"
)]
pub struct PostgresConfigError {
    reason: String,
}

impl FromStr for PostgresConfig {
    type Err = PostgresConfigError;

    /// A URL, or `key=value` words as in libpq. Encrypted where the server can, except on this
    /// machine, unless `sslmode` says otherwise; an encrypted server must have a valid certificate.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let failed = |reason: String| PostgresConfigError { reason };
        let mut config = Config::from_str(text).map_err(|error| failed(one_line(&error)))?;
        if config.get_hosts().is_empty() {
            return Err(failed("no host".to_owned()));
        }
        if !text.contains("sslmode") && config.get_hosts().iter().all(is_local) {
            config.ssl_mode(SslMode::Disable);
        }
        if config.get_application_name().is_none() {
            config.application_name("tidings");
        }
        config.connect_timeout(POSTGRES_CONNECT_TIMEOUT);
        config.tcp_user_timeout(POSTGRES_STATEMENT_TIMEOUT);
        if !text.contains("keepalives") {
            config.keepalives_idle(POSTGRES_KEEPALIVE).keepalives_interval(POSTGRES_KEEPALIVE);
            config.keepalives_retries(POSTGRES_KEEPALIVE_TRIES);
        }
        Ok(Self(config))
    }
}

impl PostgresConfig {
    /// Sets this password if there is none yet.
    #[must_use]
    pub fn or_password(mut self, password: &str) -> Self {
        if self.0.get_password().is_none() {
            self.0.password(password);
        }
        self
    }

    /// The name of the database for messages, without the password.
    pub fn name(&self) -> String {
        let host = match self.0.get_hosts().first() {
            Some(Host::Tcp(host)) => host.clone(),
            #[cfg(unix)]
            Some(Host::Unix(path)) => path.display().to_string(),
            None => String::new(),
        };
        let port = self.0.get_ports().first().filter(|port| **port != 5432);
        let port = port.map(|port| format!(":{port}")).unwrap_or_default();
        let database = self.0.get_dbname().or(self.0.get_user()).unwrap_or_default();
        format!("postgres://{host}{port}/{database}")
    }
}

fn is_local(host: &Host) -> bool {
    match host {
        Host::Tcp(name) => {
            name == "localhost"
                || name.parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback())
        }
        #[cfg(unix)]
        Host::Unix(_) => true,
    }
}

/// An open database.
pub(super) struct Postgres {
    config: PostgresConfig,
    runtime: Runtime,
    /// `None` after an error, when the state of the connection is unknown.
    connected: Option<Connected>,
    /// Time limit for a batch and for a login.
    patience: Duration,
    bodies: BodyCompressor,
    /// When the table of bodies was created, in microseconds since 1970.
    bodies_created: i64,
}

/// A connection and the task that drives it.
struct Connected {
    client: Client,
    serving: AbortOnDropHandle<()>,
}

type BoxError = Box<dyn Error + Send + Sync>;

impl Postgres {
    /// Connects, and creates the tables.
    pub(super) fn open(config: &PostgresConfig, bodies: BodyCompressor) -> Result<Self, OpenError> {
        Self::open_within(config, bodies, POSTGRES_BATCH_TIMEOUT)
    }

    fn open_within(
        config: &PostgresConfig,
        bodies: BodyCompressor,
        patience: Duration,
    ) -> Result<Self, OpenError> {
        let failed = |error: BoxError| OpenError::Postgres {
            database: config.name(),
            reason: one_line(&*error),
        };
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| failed(error.into()))?;
        let opening = async {
            let connected = connect(config).await?;
            let created = connected.client.query_one(BODIES_CREATED, &[]).await?.get(0);
            Ok((connected, created))
        };
        let (connected, bodies_created) =
            run_within(&runtime, patience, opening).map_err(failed)?;
        let (config, connected) = (config.clone(), Some(connected));
        Ok(Self { config, runtime, connected, patience, bodies, bodies_created })
    }

    fn upsert(&mut self, batch: &[Arc<PageRecord>]) -> Result<(), BoxError> {
        let pages = as_json(batch)?;
        let (config, before) = (&self.config, self.connected.take());
        let storing = async {
            let mut connected = match before {
                Some(connected) if !connected.client.is_closed() => connected,
                _ => connect(config).await?,
            };
            store(&mut connected.client, &pages, batch, &mut self.bodies).await?;
            Ok(connected)
        };
        self.connected = Some(run_within(&self.runtime, self.patience, storing)?);
        Ok(())
    }
}

impl Sink for Postgres {
    fn name(&self) -> String {
        self.config.name()
    }

    fn write(&mut self, batch: &[Arc<PageRecord>]) -> Result<(), StoreError> {
        self.upsert(batch).map_err(|error| StoreError { text: one_line(&*error), closed: false })
    }

    fn batch_bytes(&self, record: &PageRecord) -> usize {
        self.bodies.batch_bytes(record)
    }

    fn take_refused(&mut self) -> Vec<(PageId, String)> {
        self.bodies.take_refused()
    }

    fn body_output(&self) -> Option<String> {
        self.bodies.is_on().then(|| format!("postgres {}", self.bodies_created))
    }

    fn close(&mut self) {
        let Some(Connected { client, serving }) = self.connected.take() else { return };
        // Dropping the client tells the server.
        drop(client);
        let _ = run_within(&self.runtime, STOP_CLOSE, async { Ok(serving.await?) });
    }
}

/// Stores the rows, and the bodies that the table does not have, in one transaction.
async fn store(
    client: &mut Client,
    pages: &str,
    batch: &[Arc<PageRecord>],
    compressor: &mut BodyCompressor,
) -> Result<(), BoxError> {
    let mut bodies = compressor.bodies_of(batch);
    if bodies.is_empty() {
        client.execute(UPSERT.as_str(), &[&pages]).await?;
        return Ok(());
    }
    let hashes: Vec<_> = bodies.keys().collect();
    for known in client.query("SELECT hash FROM bodies WHERE hash = ANY ($1)", &[&hashes]).await? {
        bodies.remove(known.get::<_, &str>(0));
    }
    let bodies = compressor.compress(bodies)?;
    let transaction = client.transaction().await?;
    let insert = transaction.prepare(INSERT_BODY).await?;
    for body in bodies {
        let values: [&(dyn ToSql + Sync); 4] = [&body.hash, &ENCODING, &body.bytes, &body.gzip];
        transaction.execute(&insert, &values).await?;
    }
    transaction.execute(UPSERT.as_str(), &[&pages]).await?;
    Ok(transaction.commit().await?)
}

/// Runs a future with a time limit.
fn run_within<T>(
    runtime: &Runtime,
    patience: Duration,
    doing: impl Future<Output = Result<T, BoxError>>,
) -> Result<T, BoxError> {
    let late = |_| format!("the server has not answered within {patience:?}");
    runtime.block_on(async { timeout(patience, doing).await.map_err(late)? })
}

/// The rows of a batch as JSON. One statement cannot change a row twice, so each page has only its
/// newest attempt.
fn as_json(batch: &[Arc<PageRecord>]) -> serde_json::Result<String> {
    let mut newest: HashMap<&PageId, &PageRecord> = HashMap::new();
    for record in batch {
        let order = |record: &PageRecord| (record.task.attempt, record.fetched_unix_ms);
        let place = newest.entry(&record.page).or_insert(record);
        if order(record) >= order(place) {
            *place = record;
        }
    }
    let mut rows: Vec<_> = newest.into_values().map(PageRow::of).collect();
    // Two crawlers with the same pages take the row locks in the same order.
    rows.sort_unstable_by(|a, b| a.page.cmp(&b.page));
    let json = serde_json::to_string(&rows)?;
    // The only character that PostgreSQL cannot store.
    Ok(if json.contains("\\u0000") { json.replace("\\u0000", "\\ufffd") } else { json })
}

async fn connect(config: &PostgresConfig) -> Result<Connected, BoxError> {
    // As for pages: the certificate is checked with the system's certificate authorities.
    let tls = MakeRustlsConnect::new(client_config(system_roots()));
    let (mut client, connection) = config.0.connect(tls).await?;
    // The client reports how the connection has ended.
    let serving = AbortOnDropHandle::new(tokio::spawn(async { drop(connection.await) }));
    let timeout = POSTGRES_STATEMENT_TIMEOUT.as_millis();
    client.batch_execute(&format!("SET statement_timeout = {timeout}")).await?;
    let mut transaction = client.transaction().await?;
    create_tables(&mut transaction).await?;
    transaction.commit().await?;
    Ok(Connected { client, serving })
}

async fn create_tables(transaction: &mut Transaction<'_>) -> Result<(), BoxError> {
    transaction.execute("SELECT pg_advisory_xact_lock($1)", &[&LOCK]).await?;
    transaction
        .batch_execute(
            "CREATE TABLE IF NOT EXISTS tidings_schema (
                version integer PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT now())",
        )
        .await?;
    let found = transaction.query_one("SELECT max(version) FROM tidings_schema", &[]).await?;
    match found.get::<_, Option<i32>>(0) {
        Some(VERSION) => Ok(()),
        Some(found) => Err(format!(
            "its tables have schema version {found}, but this Tidings uses {VERSION}; use the one that made them, or \
             another database"
        )
        .into()),
        None => {
            transaction.batch_execute(CREATE).await?;
            let insert = "INSERT INTO tidings_schema (version) VALUES ($1)";
            transaction.execute(insert, &[&VERSION]).await?;
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests;
