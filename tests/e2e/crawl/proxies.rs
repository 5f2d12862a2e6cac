//! Requests through pproxy, an independent HTTP and SOCKS5 proxy that logs the requested hosts.

use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::support::callback_server::CallbackServer;
use crate::support::feed_fixture::FormFields;
use crate::support::line_connection::LineConnection;
use crate::support::nginx::start_tls_proxy;
use crate::support::origin::{Origin, Site, html_response};
use crate::support::ports::{free_address, free_port};
use crate::support::process::{Process, ProcessOutput, Server, tidings_command};
use crate::support::wait::wait_until;

const LOGIN: &str = "user:p@ss";
/// The login, encoded for a URL.
const ENCODED_LOGIN: &str = "user:p%40ss";
const SCHEMES: [&str; 3] = ["http", "socks5", "socks5h"];

/// A running proxy.
struct Proxy {
    process: Process,
    port: u16,
}

impl Proxy {
    /// Starts a proxy for this scheme that requires the login.
    #[track_caller]
    fn start(scheme: &str) -> Self {
        let (port, scheme) = (free_port(), scheme.trim_end_matches('h'));
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut command = Command::new(root.join("target/venv/bin/python"));
        let listen = format!("{scheme}://127.0.0.1:{port}#{LOGIN}");
        command.args(["-u", "-m", "pproxy", "-v", "-l", &listen]);
        let process = Process::start(&mut command);
        wait_until("the proxy to listen", || TcpStream::connect(("127.0.0.1", port)).ok());
        Self { process, port }
    }

    fn url(&self, scheme: &str, login: &str) -> String {
        format!("{scheme}://{login}@127.0.0.1:{}", self.port)
    }

    /// Waits until the proxy has logged a request for this host and port.
    #[track_caller]
    fn wait_for_request(&self, host: &str, port: u16) {
        self.process.wait_for_line_with(&format!("-> {host}:{port}"));
    }
}

/// The host that the proxy receives for `localhost` with each of [`SCHEMES`].
const REQUESTED_HOSTS: [&str; 3] = ["localhost", "127.0.0.1", "localhost"];

#[track_caller]
fn crawl_through(url: &str, proxy: &str, certificate: Option<&Path>) -> ProcessOutput {
    let folder = TempDir::new().unwrap();
    let arguments = ["crawl", url, "--allow-private", "--max-pages=1", "--json", "--proxy", proxy];
    let mut command = tidings_command(folder.path(), arguments);
    command.envs(certificate.map(|file| ("SSL_CERT_FILE", file)));
    Process::start(&mut command).finish()
}

/// The JSON object of the one page.
#[track_caller]
fn page_result(finished: &ProcessOutput) -> Value {
    let lines = finished.stdout();
    let pages = lines.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    pages.into_iter().find(|line| line["url"].is_string()).unwrap_or_else(|| panic!("{lines:?}"))
}

#[test]
#[ignore = "needs foreign programs"]
fn the_crawler_fetches_through_http_and_socks_proxies() {
    let origin =
        Origin::serve_with(Site::default(), |_| Some(html_response("<title>seen</title>")));
    let plain = origin.url(0, "/page");
    let port: u16 = plain.rsplit(':').next().unwrap().split('/').next().unwrap().parse().unwrap();
    let (_nginx, tls_port, certificate) = start_tls_proxy(port);
    for (scheme, host) in SCHEMES.into_iter().zip(REQUESTED_HOSTS) {
        let proxy = Proxy::start(scheme);
        let proxy_url = proxy.url(scheme, ENCODED_LOGIN);
        for (url, port) in [
            (format!("http://localhost:{port}/page"), port),
            (format!("https://localhost:{tls_port}/page"), tls_port),
        ] {
            let page = page_result(&crawl_through(&url, &proxy_url, Some(&certificate)));
            assert_eq!(
                (&page["status"], &page["title"]),
                (&200.into(), &"seen".into()),
                "{scheme}: {page}"
            );
            proxy.wait_for_request(host, port);
        }
    }
}

#[test]
#[ignore = "needs foreign programs"]
fn a_proxy_error_does_not_show_the_password() {
    let origin =
        Origin::serve_with(Site::default(), |_| Some(html_response("<title>seen</title>")));
    let port = origin.url(0, "/").rsplit(':').next().unwrap().trim_end_matches('/').to_owned();
    for (scheme, url, expected) in [
        ("http", format!("https://127.0.0.1:{port}/"), "proxy: "),
        ("socks5", format!("http://127.0.0.1:{port}/"), "proxy: SOCKS error: "),
        ("socks5h", format!("http://127.0.0.1:{port}/"), "proxy: SOCKS error: "),
    ] {
        let proxy = Proxy::start(scheme);
        let finished = crawl_through(&url, &proxy.url(scheme, "user:hush"), None);
        let (stdout, stderr) = (finished.stdout().join("\n"), finished.stderr());
        assert!(stdout.contains(expected) && stdout.contains("\"proxy\""), "{scheme}: {stdout}");
        assert!(
            !stdout.contains("hush") && !stderr.contains("hush"),
            "{scheme}: {stdout} {stderr}"
        );
    }
    assert!(origin.request_log().0.is_empty());
    // Forbidden addresses are not requested, and the proxy does not learn their names.
    let proxy = Proxy::start("socks5");
    let folder = TempDir::new().unwrap();
    for scheme in ["socks5", "socks5h"] {
        let proxy_url = proxy.url(scheme, ENCODED_LOGIN);
        for host in ["localhost", "127.0.0.1", "[::1]"] {
            let url = format!("http://{host}:{port}/");
            let arguments = ["crawl", &url, "--max-pages=1", "--json", "--proxy", &proxy_url];
            let finished = Process::start(&mut tidings_command(folder.path(), arguments)).finish();
            let page = page_result(&finished);
            assert_eq!(page["reason"], "address", "{scheme} {host}: {page}");
        }
    }
    assert!(proxy.process.find_line(|line| line.contains("->").then_some(())).is_none());
}

#[test]
#[ignore = "needs foreign programs"]
fn hub_requests_go_through_http_and_socks_proxies() {
    let hub = CallbackServer::start();
    let (_nginx, tls_port, certificate) = start_tls_proxy(hub.port);
    for (n, (scheme, host)) in SCHEMES.into_iter().zip(REQUESTED_HOSTS).enumerate() {
        let proxy = Proxy::start(scheme);
        let http = free_address().to_string();
        let public = format!("http://{http}/");
        let proxy_url = proxy.url(scheme, ENCODED_LOGIN);
        let flags = [
            "broker",
            "--http",
            &http,
            "--public-url",
            &public,
            "--allow-private",
            "--proxy",
            &proxy_url,
        ];
        let server = Server::start_in(TempDir::new().unwrap(), &flags, |command| {
            command.env("SSL_CERT_FILE", &certificate);
        });
        let feed = format!("http://blog.example/{scheme}");
        let mut client = LineConnection::connect_client(server.address);
        client.request_ok("GROUP create crawlers");
        client.request_ok(&format!("PUB new-url {feed} every=1h feed=10m-1d"));
        let found = format!("PUB hub-found {feed} hub=https://localhost:{tls_port}/202/hub");
        client.request_ok(&found);
        let form = FormFields::parse(&hub.first_requests(n + 1)[n]);
        assert_eq!((form.get("hub.mode"), form.get("hub.topic")), ("subscribe", feed.as_str()));
        // A tunnel, so the proxy sees only encrypted bytes.
        proxy.wait_for_request(host, tls_port);
    }
    // A forbidden hub gets no request, and the proxy does not learn its name.
    let proxy = Proxy::start("socks5");
    let http = free_address().to_string();
    let public = format!("http://{http}/");
    let proxy_url = proxy.url("socks5", ENCODED_LOGIN);
    let server =
        Server::start(&["broker", "--http", &http, "--public-url", &public, "--proxy", &proxy_url]);
    let mut client = LineConnection::connect_client(server.address);
    client.request("GROUP create crawlers");
    client.request("PUB new-url http://blog.example/f every=1h feed=10m-1d");
    client.request(&format!(
        "PUB hub-found http://blog.example/f hub=https://localhost:{tls_port}/202/hub"
    ));
    server.process.wait_for_line_with("private");
    assert!(proxy.process.find_line(|line| line.contains("->").then_some(())).is_none());
    assert!(server.process.find_line(|line| line.contains("ss@").then_some(())).is_none());
}
