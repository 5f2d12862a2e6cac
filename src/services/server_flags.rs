//! Flags of the subcommands that run a broker, and the configuration that they make.

use std::fs::File;
use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{ArgAction, Args};
use tidings_broker::{AuditConfig, BrokerConfig, EmbeddedHandler, HttpConfig, Sockets};
use tidings_connectors::delivery::Signer;
use tidings_connectors::push::Push;
use tidings_protocol::{CanonicalUrl, Settings, Sync, TopicName, TopicSettings};
use tidings_queue::{NEVER_BYTES_MAX, NeverList};

use crate::client::broker_message;
use crate::config::tables::Tables;
use crate::flags::address::{Listen, ListenHttp};
use crate::flags::{DataFlag, milliseconds, parse_duration};
use crate::process::logging;
use crate::process::metrics::ProcessMetrics;
use crate::process::privileges::{ProcessFlags, ServerResources};
use crate::process::stack::{StopTimeout, http_url};
use crate::services::access::{AccessFlags, TransportGrant, parse_grant};
use crate::services::callbacks::CallbackFlags;
use crate::services::hooks::HookFlags;
use crate::services::optional::OptionalFlags;
use crate::services::public_url::PublicUrl;
use crate::services::push::PushTables;
use crate::services::quotas::QuotaFlags;
use crate::services::sinks::{check_parent, parent_dir};
use crate::services::tls::TlsFlags;
use crate::services::websub::WebSubFlags;
use crate::terminal::failure::Failure;

/// Flags of the subcommands that run a broker for other processes.
#[derive(Debug, Clone, Args)]
pub(crate) struct ServerFlags {
    /// Listen on HOST:PORT, or on a port of 127.0.0.1; port 0 takes a free one
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:12345")]
    pub(crate) listen: Listen,

    /// Wait this long between two requests to one host [default: 1s, 0 for loopback]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) delay: Option<Duration>,

    /// Request nothing of the hosts and URLs in FILE
    ///
    /// Each line is a host, *.HOST for all below it too, or, with a slash, a URL pattern as in the
    /// exclude= of a job; # begins a comment. Read again on SIGHUP. The list also applies to
    /// scripts, frames and other parts of rendered pages. Groups with key=none or seq have no list.
    #[arg(long, value_name = "FILE")]
    never: Option<PathBuf>,

    /// Number of network threads [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) threads: Option<u16>,

    /// Log every received line (same as `TIDINGS_LOG=tidings::line=debug`)
    #[arg(long)]
    pub(crate) log_lines: bool,

    /// Append an audit log in JSON Lines to FILE, or write it to standard error with -
    ///
    /// The file is reopened on SIGHUP.
    #[arg(long, value_name = "FILE")]
    audit: Option<PathBuf>,

    #[command(flatten)]
    topics: TopicFlags,

    #[command(flatten)]
    pub(crate) tls: Box<TlsFlags>,

    #[command(flatten)]
    pub(crate) access: AccessFlags,

    #[command(flatten)]
    quotas: QuotaFlags,

    #[command(flatten)]
    pub(crate) http: HttpFlags,

    /// Privileged attributes that a transport accepts
    #[cfg_attr(feature = "_zmq", doc = "[default: all for line and http, none for zmq]")]
    #[cfg_attr(not(feature = "_zmq"), doc = "[default: all]")]
    ///
    #[cfg_attr(feature = "_zmq", doc = "Transports are line, http and zmq.")]
    #[cfg_attr(not(feature = "_zmq"), doc = "Transports are line and http.")]
    /// The attributes every=, prio= and job= control schedules, priority and jobs. hub allows
    /// notifications of feed changes (hub=, cloud=, pushed=) and the topics hub-found, hub and
    /// hub-verify. job also allows the topic job-done. May be repeated.
    #[arg(long, value_name = "TRANSPORT=ATTRIBUTE,..", value_parser = parse_grant)]
    grant: Vec<TransportGrant>,

    #[command(flatten)]
    pub(crate) optional: OptionalFlags,

    #[command(flatten)]
    pub(crate) callbacks: CallbackFlags,

    #[arg(skip)]
    push: PushTables,

    #[command(flatten)]
    pub(crate) process: Box<ProcessFlags>,
}

/// Flags of the HTTP listener.
#[derive(Debug, Clone, Args)]
pub(crate) struct HttpFlags {
    /// Listen for HTTP on HOST:PORT or a port, or off [default: 127.0.0.1:12346, or a free port if
    /// --listen takes one]
    #[arg(long, value_name = "HOST:PORT")]
    http: Option<ListenHttp>,

    /// Also accept HTTP requests with this Host header; may be repeated
    ///
    /// localhost and IP addresses are always accepted.
    #[arg(long, value_name = "NAME")]
    http_host: Vec<String>,

    /// Whether browsers get the dashboard at the address of HTTP
    #[arg(long, value_name = "WHEN", default_value = "on", action = ArgAction::Set, value_parser = on_or_off())]
    dashboard: bool,

    /// Public URL of the HTTP listener, for example behind a proxy
    ///
    /// Hubs of watched feeds send their notifications there. Its host is accepted as with
    /// --http-host.
    #[arg(long, value_name = "URL")]
    pub(crate) public_url: Option<PublicUrl>,

    #[command(flatten)]
    hooks: HookFlags,

    #[command(flatten)]
    pub(crate) websub: WebSubFlags,
}

fn on_or_off() -> impl TypedValueParser<Value = bool> {
    PossibleValuesParser::new(["on", "off"]).map(|word| word == "on")
}

impl HttpFlags {
    fn hosts(&self) -> Vec<String> {
        let public = self.public_url.as_ref().map(|url| url.host().to_owned());
        self.http_host.iter().cloned().chain(public).collect()
    }

    /// The address of the HTTP listener, if it is on.
    fn listen_address(&self, lines: Listen) -> Option<SocketAddr> {
        let mut usual = HttpConfig::default().listen;
        match self.http {
            Some(ListenHttp::Off) => return None,
            Some(ListenHttp::At(listen)) => return Some(listen.0),
            // Without a fixed port for lines, HTTP has none either.
            None if lines.0.port() == 0 => usual.set_port(0),
            None => {}
        }
        Some(usual)
    }

    /// The topic on which a request to this URL publishes, as far as the flags say it: that of a
    /// webhook, or the topic itself.
    fn published_topic(&self, url: &CanonicalUrl<'_>, lines: Listen) -> Option<TopicName> {
        let is_listener = |address: SocketAddr| {
            let ip = url.address();
            let is_same = ip == Some(address.ip()) || address.ip().is_unspecified();
            url.port() == address.port() && (is_same || url.is_loopback())
        };
        let is_own = self.hosts().iter().any(|host| host == url.host())
            || self.listen_address(lines).is_some_and(is_listener);
        let mut path = url.path().rsplit('/');
        let (name, folder) = (path.next().unwrap_or_default(), path.next());
        match folder.filter(|_| is_own)? {
            "hooks" => self.hooks.topic_of(name).cloned(),
            "topics" => name.parse().ok(),
            _ => None,
        }
    }

    /// The configuration of the listener, with further receivers of requests.
    fn config(
        &self,
        lines: Listen,
        receivers: Vec<Arc<dyn EmbeddedHandler>>,
    ) -> Result<Option<HttpConfig>, Failure> {
        let mut config = HttpConfig {
            allowed_hosts: self.hosts(),
            dashboard: self.dashboard,
            hooks: self.hooks.hooks()?,
            hook_events_per_minute: self.hooks.hook_events,
            embedded_handlers: receivers,
            ..HttpConfig::default()
        };
        if self.http == Some(ListenHttp::Off) && self.public_url.is_some() {
            let text =
                "--public-url needs HTTP, which is off (--http off); remove one of the two flags";
            return Err(Failure::Usage(text.to_owned()));
        }
        let Some(listen) = self.listen_address(lines) else {
            if !config.hooks.is_empty() {
                let text = "[[hook]] needs HTTP, which is off (--http off); remove one of the two";
                return Err(Failure::Usage(text.to_owned()));
            }
            return Ok(None);
        };
        let (Listen(line), ip) = (lines, listen.ip());
        let is_shared = ip == line.ip() || ip.is_unspecified() || line.ip().is_unspecified();
        if listen.port() == line.port() && listen.port() != 0 && is_shared {
            return Err(Failure::Usage(format!(
                "--listen {line} and --http {listen} have the same port; choose another port for \
                 one of them"
            )));
        }
        config.listen = listen;
        Ok(Some(config))
    }
}

/// The default settings of topics.
#[derive(Debug, Clone, Args)]
struct TopicFlags {
    /// When an event is confirmed: always (after a sync to disk), interval (after the write) or
    /// memory (never on disk)
    #[arg(long, value_name = "WHEN", default_value = "always", value_parser = parse_sync)]
    sync: Sync,

    /// Keep this many bytes of each topic; k, m and g are units
    #[arg(long, value_name = "BYTES", default_value = "1g", value_parser = parse_retain_bytes)]
    retain_bytes: u64,

    /// Keep events for this time; 0 sets no limit
    #[arg(long, value_name = "DURATION", default_value = "30d", value_parser = parse_duration)]
    retain_age: Duration,
}

impl TopicFlags {
    fn settings(&self) -> TopicSettings {
        TopicSettings {
            sync: self.sync,
            retain_bytes: self.retain_bytes,
            retain_age_ms: milliseconds(self.retain_age),
        }
    }
}

impl ServerFlags {
    /// Adds what the configuration file has beside flags.
    pub(crate) fn set_tables(&mut self, tables: Tables) {
        self.http.hooks.hook = tables.hooks;
        self.push = PushTables(tables.pushes);
    }

    /// The line that names the HTTP address.
    pub(crate) fn http_line(&self, address: SocketAddr) -> String {
        let what = if self.http.dashboard { "HTTP and dashboard" } else { "HTTP" };
        format!("{what} at {}", http_url(address, self.tls.is_encrypted()))
    }

    /// The addresses of the line listener, and of the HTTP listener if it is on.
    pub(crate) fn listen_addresses(&self) -> (SocketAddr, Option<SocketAddr>) {
        (self.listen.0, self.http.listen_address(self.listen))
    }

    /// The audit file, if records are written to one.
    pub(crate) fn audit_file(&self) -> Option<&Path> {
        self.audit.as_deref().filter(|path| *path != Path::new("-"))
    }

    /// What the process uses. `inputs` are further files that it reads, `output_dirs` directories
    /// of further outputs.
    pub(crate) fn resources<'a>(
        &'a self,
        data: &'a DataFlag,
        inputs: impl Iterator<Item = &'a Path>,
        mut output_dirs: Vec<PathBuf>,
        runs_programs: bool,
    ) -> ServerResources<'a> {
        let (listen, http) = self.listen_addresses();
        output_dirs
            .extend(self.tls.unix_path().into_iter().chain(self.audit_file()).map(parent_dir));
        // Directories, because a replaced file is a different file.
        let mut input_dirs: Vec<_> = self.files().iter().map(|file| parent_dir(file)).collect();
        input_dirs.extend(inputs.map(parent_dir));
        ServerResources {
            flags: &self.process,
            listen,
            http,
            data: &data.data,
            output_dirs,
            input_dirs,
            runs_programs,
            runs_browsers: false,
            runs_itself: self.optional.runs_itself(),
        }
    }

    /// Files outside the data directory that the broker reads while it runs.
    fn files(&self) -> Vec<PathBuf> {
        let secrets = self.http.hooks.secret_files().chain(self.callbacks.secret_file());
        let secrets = secrets.chain(self.push.secret_files());
        let files = secrets.chain(self.optional.key_file()).chain(self.tls.files());
        let files = files.chain(self.never.as_deref());
        files.map(Path::to_owned).collect()
    }

    /// The pushes, with their secrets, which are read now.
    pub(crate) fn pushes(&self) -> Result<Vec<(Push, Option<Signer>)>, Failure> {
        let http = &self.http;
        let published_topic = |url: &CanonicalUrl<'_>| http.published_topic(url, self.listen);
        self.push.pushes(http.public_url.as_ref(), published_topic)
    }

    /// The configuration of a broker with these flags and this data directory. Reads the secrets of
    /// webhooks and the never-list, and checks the pushes.
    pub(crate) fn config(&self, data: &DataFlag) -> Result<BrokerConfig, Failure> {
        let mut config = broker_config(self.listen, self.delay);
        config.data = Some(data.data.clone());
        config.topic_defaults = self.topics.settings();
        if let Some(file) = &self.never {
            config.never_list = read_never_list(file)?.into();
        }
        let receivers = self.optional.receivers(self.http.public_url.as_ref())?;
        config.http = self.http.config(self.listen, receivers)?;
        self.tls.apply(&mut config, &data.data)?;
        self.access.apply(&mut config, &data.data)?;
        config.quotas = self.quotas.config();
        for TransportGrant { transport, attributes } in &self.grant {
            config.access.transport_policy.grant(*transport, attributes);
        }
        config.limits.stop_ms = milliseconds(StopTimeout(self.process.stop_timeout).connections());
        config.audit = self.audit.as_ref().map(|_| {
            self.audit_file().map_or(AuditConfig::Stderr, |path| AuditConfig::File(path.to_owned()))
        });
        config.metrics_sources.push(Arc::new(ProcessMetrics::new()));
        config.log_lines = self.log_lines || logging::filter_names_lines();
        self.check_exposure(&config, &Sockets::default(), data)?;
        self.pushes()?;
        Ok(config)
    }

    /// All that a start would refuse, as far as it is found without a change: wrong flags and
    /// tables, and files and names that the flags name.
    pub(crate) fn problems(&self, data: &DataFlag) -> Vec<Failure> {
        let tables: Vec<_> =
            [self.http.hooks.hooks().err(), self.pushes().err()].into_iter().flatten().collect();
        let mut others = self.clone();
        if !tables.is_empty() {
            // They would hide other problems.
            others.set_tables(Tables::default());
        }
        let checks = [
            others.config(data).map(drop),
            self.tls.check_files(),
            self.tls.check_unix(),
            self.audit_file().map_or(Ok(()), |file| check_parent("--audit", file)),
            self.callbacks.check(),
            self.process.check_user(),
        ];
        tables.into_iter().chain(checks.into_iter().filter_map(Result::err)).collect()
    }

    /// Refuses services whose state is only on this machine.
    #[cfg(feature = "cluster")]
    pub(crate) fn check_no_state(&self) -> Result<(), Failure> {
        let public = self.http.public_url.as_ref();
        let text = if !self.optional.receivers(public)?.is_empty() {
            "--hub keeps its subscribers on one machine; run the hub on a broker without --cluster"
        } else if self.http.websub.is_on(public) {
            "--public-url subscribes to hubs, which a broker with --cluster cannot; add --no-websub"
        } else {
            return Ok(());
        };
        Err(Failure::Usage(text.to_owned()))
    }

    /// [`AccessFlags::check_exposure`]
    pub(crate) fn check_exposure(
        &self,
        config: &BrokerConfig,
        sockets: &Sockets,
        data: &DataFlag,
    ) -> Result<(), Failure> {
        self.access.check_exposure(config, sockets, &data.data)?;
        self.optional.check_exposure(|address| self.access.is_exposed(address))
    }
}

/// The configuration of a broker at this address, without a data directory, with this delay between
/// two requests to a host.
pub(crate) fn broker_config(listen: Listen, delay: Option<Duration>) -> BrokerConfig {
    let mut config = BrokerConfig { listen: listen.0, ..BrokerConfig::default() };
    if let Some(delay) = delay {
        config.group.settings.delay_ms = Some(milliseconds(delay));
    }
    config
}

fn read_never_list(file: &Path) -> Result<NeverList, Failure> {
    let wrong = |problem: String| Failure::Usage(format!("--never {}: {problem}", file.display()));
    let mut text = Vec::new();
    // One byte more shows that it is too long.
    let longest = NEVER_BYTES_MAX as u64 + 1;
    let read = File::open(file).and_then(|file| file.take(longest).read_to_end(&mut text));
    read.map_err(|error| wrong(error.to_string()))?;
    NeverList::parse(&text).map_err(|error| wrong(error.to_string()))
}

fn parse_sync(text: &str) -> Result<Sync, String> {
    parse_topic_setting("sync", text).map(|settings| settings.sync)
}

/// Parses bytes in the format of all Tidings flags, at least a megabyte.
fn parse_retain_bytes(text: &str) -> Result<u64, String> {
    parse_topic_setting("retain-bytes", text).map(|settings| settings.retain_bytes)
}

fn parse_topic_setting(key: &str, text: &str) -> Result<TopicSettings, String> {
    TopicSettings::parse([(key, text)])
        .map_err(|error| broker_message::flag_value_error(&error.text))
}

#[cfg(test)]
mod tests {
    use clap::{Args, Command, FromArgMatches};

    use super::*;

    fn topics(words: &[&str]) -> Result<TopicSettings, String> {
        let words = ["tidings"].iter().chain(words);
        TopicFlags::augment_args(Command::new("tidings"))
            .try_get_matches_from(words)
            .and_then(|matches| TopicFlags::from_arg_matches(&matches))
            .map(|flags| flags.settings())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn topic_flags_have_the_defaults_of_the_broker() {
        assert_eq!(topics(&[]).unwrap(), TopicSettings::default());
        let given = ["--sync=interval", "--retain-bytes=3m", "--retain-age=0"];
        assert_eq!(
            topics(&given).unwrap().to_string(),
            "sync=interval retain-bytes=3m retain-age=0"
        );
    }

    #[test]
    fn a_wrong_setting_is_rejected_with_a_valid_one() {
        for (flag, right) in
            [("--sync=no", "memory"), ("--retain-bytes=5", "1m"), ("--retain-age=5", "30s")]
        {
            let error = topics(&[flag]).unwrap_err();
            assert!(error.contains(right), "{error}");
        }
    }
}
