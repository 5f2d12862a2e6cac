//! `tidings health`: one word and an exit code, for containers and monitors.

#![expect(clippy::disallowed_methods, reason = "a check has a time limit")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use hyper::body::Bytes;
use hyper::header::HeaderValue;
use hyper::{HeaderMap, Method};
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tidings_client::ClientError;
use tidings_egress::client::OutgoingClient;
use tidings_egress::connect::{ConnectConfig, Connector, SystemLookup, system_roots};
use tidings_egress::{AllowPrivate, Reason};
use tidings_protocol::status::{TopicState, TopicStatus};
use tidings_protocol::{CanonicalUrl, Code, Command, TopicAction, TopicCommand};
use tokio::time::timeout;

use crate::client::{connection, manage};
use crate::flags::address::parse_http_url;
use crate::flags::broker::BrokerFlag;
use crate::terminal::failure::Failure;
use crate::terminal::output::{Console, printable};

const EXAMPLES: &str = "\
Examples:
  tidings health                                the broker of this machine
  tidings health --broker unix:/run/tidings.sock
  tidings health --http 127.0.0.1:12346         the same by HTTP (GET /ready)
  HEALTHCHECK CMD [\"tidings\", \"health\"]         in a Dockerfile

It prints `healthy`, or `unhealthy` and the reason on standard error. Healthy is a broker that
answers within five seconds and whose topics accept events. `tidings status` checks more. --http
needs no login, and verifies a certificate with the authorities of --ca, of SSL_CERT_FILE or of the
system.

Exit codes: 0 healthy; 1 unhealthy, or the broker cannot be reached; 2 wrong usage.";

/// The name of the connection, as the broker shows it.
const NAME: &str = "tidings-health";

/// The time limit of the check. Monitors repeat it every 10 to 60 s.
const CHECK_MAX: Duration = Duration::from_secs(5);

/// Flags of the line protocol, without effect on a check by HTTP.
const LINE_FLAGS: [&str; 7] = ["broker", "context", "tls", "crl", "cert", "cert-key", "token-file"];

/// Bytes of an answer by HTTP that are shown.
const BODY_BYTES_MAX: usize = 1_000;

/// The flags of `tidings health`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct HealthArgs {
    /// Check by HTTP instead, at HOST:PORT, a port or a URL
    // Not a setting: `http` is where a server listens.
    #[arg(id = "typed_http", long = "http", value_name = "HOST:PORT", value_parser = parse_http)]
    http: Option<CanonicalUrl<'static>>,

    #[command(flatten)]
    broker: BrokerFlag,

    /// Long names of the flags that were typed.
    #[arg(skip)]
    pub(crate) typed_flags: Vec<String>,

    /// The value of `--ca`, which is for both ways.
    #[arg(skip)]
    pub(crate) ca: Option<PathBuf>,
}

/// Prints one word.
pub(crate) async fn run(args: HealthArgs) -> Result<(), Failure> {
    let is_of_lines = |typed: &&String| LINE_FLAGS.contains(&typed.as_str());
    if let (Some(_), Some(flag)) = (&args.http, args.typed_flags.iter().find(is_of_lines)) {
        let text = format!(
            "--{flag} has no effect with --http, which logs in nowhere; remove one of the two flags"
        );
        return Err(Failure::Usage(text));
    }
    let check = async {
        match &args.http {
            Some(url) => check_http(url, args.ca.as_deref()).await,
            None => check_broker(&args.broker).await,
        }
    };
    let late = || {
        let broker = args.broker.broker.as_str();
        let address = args.http.as_ref().map_or(broker, |url| url.as_str());
        Failure::failed(format!("{address}: no answer within {} s", CHECK_MAX.as_secs()))
    };
    let checked = timeout(CHECK_MAX, check).await.unwrap_or_else(|_| Err(late()));
    let word = if checked.is_ok() { "healthy" } else { "unhealthy" };
    Console::new().line(word)?;
    checked
}

/// Whether the broker answers, and accepts events. A client without the permission to see the
/// topics learns only the first.
async fn check_broker(flag: &BrokerFlag) -> Result<(), Failure> {
    let (client, _deliveries) = connection::connect(&flag.broker, NAME).await?;
    let ls = TopicCommand { action: TopicAction::Ls, name: None, settings: Vec::new() };
    let answer = match client.request(&Command::Topic(ls)).await {
        Err(ClientError::Refused(error))
            if matches!(error.code, Code::Denied | Code::Unauthenticated) =>
        {
            return Ok(());
        }
        answer => answer.map_err(|error| manage::failure(&flag.broker, error))?,
    };
    let refuses =
        |topic: &TopicStatus| matches!(topic.state, TopicState::Full | TopicState::SyncFailed);
    match answer.more.iter().map(|line| TopicStatus::parse(line)).find(refuses) {
        Some(TopicStatus { topic, state, .. }) => {
            Err(Failure::failed(format!("topic {topic} refuses events: {state}")))
        }
        None => Ok(()),
    }
}

async fn check_http(url: &CanonicalUrl<'_>, ca: Option<&Path>) -> Result<(), Failure> {
    let config = ConnectConfig { allow_private: AllowPrivate::All, ..ConnectConfig::default() };
    let roots = ca.map_or_else(|| Ok(system_roots()), read_roots)?;
    let connector = Connector::with(&config, Arc::new(SystemLookup), roots);
    let connector = connector.map_err(|error| Failure::failed(error.to_string()))?;
    let client = OutgoingClient::new(connector, HeaderValue::from_static(NAME), CHECK_MAX);
    let answer = client.send(Method::GET, url, HeaderMap::new(), Bytes::new(), BODY_BYTES_MAX);
    let answer = answer.await.map_err(|failure| {
        let is_odd = matches!(failure.reason, Reason::BadHttp | Reason::Reset);
        let is_plain = url.as_str().starts_with("http://");
        let hint = if is_odd && is_plain { "; if it expects TLS, begin with https://" } else { "" };
        Failure::failed(format!("{url}: {}{hint}", failure.text))
    })?;
    if answer.status.is_success() {
        return Ok(());
    }
    let body = printable(&String::from_utf8_lossy(&answer.body), BODY_BYTES_MAX);
    Err(Failure::failed(format!("{url}: HTTP status {}: {body}", answer.status.as_u16())))
}

/// The authorities in a PEM file.
fn read_roots(file: &Path) -> Result<RootCertStore, Failure> {
    let wrong = |error: &dyn ToString| {
        Failure::Usage(format!("--ca {}: {}", file.display(), error.to_string()))
    };
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_file_iter(file).map_err(|error| wrong(&error))? {
        let authority = authority.map_err(|error| wrong(&error))?;
        roots.add(authority).map_err(|error| wrong(&error))?;
    }
    if roots.is_empty() { Err(wrong(&"it contains no certificate in PEM")) } else { Ok(roots) }
}

/// The URL that says whether the broker is ready.
fn parse_http(text: &str) -> Result<CanonicalUrl<'static>, String> {
    parse_http_url(text, "ready")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_may_lack_its_host_or_have_a_path() {
        for (text, url) in [
            ("7", "http://127.0.0.1:7/ready"),
            (":7", "http://127.0.0.1:7/ready"),
            ("[::1]:7", "http://[::1]:7/ready"),
            ("a.example:7", "http://a.example:7/ready"),
            ("https://a.example/tidings", "https://a.example/tidings/ready"),
            ("https://a.example/", "https://a.example/ready"),
        ] {
            assert_eq!(parse_http(text).unwrap().as_str(), url);
        }
        for wrong in ["", "a b:1", "a.example:70000", "ftp://a.example/"] {
            assert!(parse_http(wrong).is_err(), "{wrong}");
        }
    }
}
