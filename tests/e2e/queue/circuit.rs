//! A host that does not answer rests, and its pages wait for it.

use crate::support::line_connection::LineConnection;
use crate::support::origin::{Origin, Site, html_response};
use crate::support::ports::free_port;
use crate::support::process::{Server, run_at};
use crate::support::wait::wait_until;

/// More than the requests without an answer after which a host is down.
const PAGES: usize = 14;

/// Waits until a host is down.
#[track_caller]
fn wait_until_down(server: &Server, host: &str) {
    let mut client = LineConnection::connect_client(server.address);
    wait_until("a host that is down", || {
        let lines = client.request_lines(&format!("EXPLAIN {host}"));
        lines.last()?.contains(" because=down free-in=").then_some(())
    });
}

// PROTOCOL: T17
#[test]
fn outage_of_a_host_loses_no_page() {
    let (host, port) = (Site::host(0).to_string(), free_port());
    let arguments = ["up", "--allow-private", "--delay", "10ms"];
    let server = Server::start(&arguments);
    run_at(&server, &["job", "open", "site"]).expect_code(0);
    let urls: Vec<_> = (0..PAGES).map(|page| format!("http://{host}:{port}/{page}")).collect();
    let urls: Vec<_> = urls.iter().map(String::as_str).collect();
    run_at(&server, &[&["job", "add", "site"], &urls[..]].concat()).expect_code(0);
    run_at(&server, &["job", "close", "site"]).expect_code(0);
    wait_until_down(&server, &host);

    let server = server.restart("KILL", &arguments);
    wait_until_down(&server, &host);

    let origin = Origin::serve_at(port, Site::default(), |hit| {
        (hit.path != "/robots.txt").then(|| html_response("a page"))
    });
    run_at(&server, &["group", "set", "crawlers", "circuit=off"]).expect_code(0);
    let waited = run_at(&server, &["job", "wait", "site"]).expect_code(0);
    assert_eq!(waited.stdout(), [format!("done: {PAGES} pages, 0 failed")]);
    assert_eq!(origin.request_count(), PAGES + 1);
}
