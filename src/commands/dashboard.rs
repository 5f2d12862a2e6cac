//! `tidings dashboard`: prints the address of the dashboard, with a token that expires.
#![expect(clippy::disallowed_methods, reason = "waits for the broker, with a time limit")]

use std::io::{self, ErrorKind};
use std::process::{Command, Stdio};
use std::time::Duration;

use clap::Args;
use jiff::Timestamp;
use tidings_broker::HTTP_PORT;
use tidings_broker::access::Permission;
use tidings_protocol::CanonicalUrl;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::commands::token::{PERMISSIONS, create_temporary};
use crate::flags::address::{parse_http_url, read_http_url};
use crate::flags::{DataFlag, of_existing_data, parse_expiry};
use crate::services::principals::POLL_INTERVAL;
use crate::terminal::failure::Failure;
use crate::terminal::output::Console;

/// What the names of the principals begin with.
const PREFIX: &str = "dashboard-";

/// The time limit for a connection to the broker.
const CONNECT_MAX: Duration = Duration::from_secs(5);

/// The flags of `tidings dashboard`.
#[derive(Debug, Args)]
#[command(after_help = PERMISSIONS, mut_arg("data", of_existing_data))]
pub(crate) struct DashboardArgs {
    /// Open the page with xdg-open
    ///
    /// Other users of the machine can read the address, with the token, in the list of processes.
    #[arg(long)]
    open: bool,

    /// Allow this permission; may be repeated (see the list below)
    #[arg(long, value_name = "PERMISSION", default_value = "monitor")]
    allow: Vec<Permission>,

    /// Let the token expire after this duration, such as 12h, or at this time, such as
    /// 2027-01-31T00:00Z
    #[arg(long, value_name = "WHEN", default_value = "12h", value_parser = parse_expiry)]
    expires: Timestamp,

    /// HTTP of the broker, at HOST:PORT, a port or a URL [default: that of the broker on the data
    /// directory, or 127.0.0.1:12346]
    // Not a setting: `http` is where a server listens.
    #[arg(
        id = "typed_http",
        long = "http",
        value_name = "HOST:PORT",
        value_parser = parse_http,
    )]
    http: Option<CanonicalUrl<'static>>,

    #[command(flatten)]
    data: DataFlag,
}

fn parse_http(text: &str) -> Result<CanonicalUrl<'static>, String> {
    parse_http_url(text, "")
}

/// Writes the token in the data directory, if a broker listens and requires a login.
pub(crate) async fn run(args: &DashboardArgs) -> Result<(), Failure> {
    let url = find_listener(args).await?;
    let token = create_temporary(&args.data, PREFIX, &args.allow, args.expires)?;
    let has_token = token.is_some();
    if !has_token {
        Console::new().note(
            "this data directory requires no login; if the page asks for a token, name the one of \
             its broker with --data",
        );
    }
    // Browsers send no fragment to the broker.
    let fragment = token.map(|token| format!("#token={}", token.secret()));
    let url = format!("{url}{}", fragment.unwrap_or_default());
    Console::new().line(&url).map_err(|_| Failure::OutputClosed)?;
    if args.open {
        if has_token {
            // The page forgets a token that the broker does not know yet.
            tokio::time::sleep(2 * POLL_INTERVAL).await;
        }
        let mut command = Command::new("xdg-open");
        let ended = command.arg(&url).stdin(Stdio::null()).stdout(Stdio::null()).status();
        let status =
            ended.map_err(|error| Failure::failed(format!("cannot run xdg-open: {error}")))?;
        if !status.success() {
            return Err(Failure::failed(format!("xdg-open failed: {status}")));
        }
    }
    Ok(())
}

/// The address of the page that is named, or of the broker on the data directory, or the default
/// one. Fails if no process listens there.
async fn find_listener(args: &DashboardArgs) -> Result<CanonicalUrl<'static>, Failure> {
    if let Some(url) = &args.http {
        return check_listener(url).await.map(|()| url.clone());
    }
    // After a crash the file of a broker stays.
    if let Some(url) = read_http_url(&args.data.data)
        && check_listener(&url).await.is_ok()
    {
        return Ok(url);
    }
    let url = parse_http(&HTTP_PORT.to_string()).expect("a port is an address");
    check_listener(&url).await.map(|()| url)
}

/// Fails if no process listens at the address of the page. Any listener is accepted, because only
/// the browser may know the authority of its certificate.
async fn check_listener(url: &CanonicalUrl<'_>) -> Result<(), Failure> {
    let host = url.address().map_or_else(|| url.host().to_owned(), |ip| ip.to_string());
    let connected = timeout(CONNECT_MAX, TcpStream::connect((host.as_str(), url.port()))).await;
    let late = |_| Err(io::Error::from(ErrorKind::TimedOut));
    connected.unwrap_or_else(late).map(drop).map_err(|error| {
        Failure::failed(format!(
            "cannot connect to {url}: {error}; start a broker with `tidings up`, or name the HTTP of \
             another one with --http"
        ))
    })
}
