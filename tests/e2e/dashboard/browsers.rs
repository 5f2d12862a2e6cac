//! The browsers of a crawler, as operators see them while pages wait for one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use super::Script;
use crate::support::http_client::HttpClient;
use crate::support::origin::{Origin, OriginResponse, Site, html_response};
use crate::support::process::{Server, run_at, run_json_at};
use crate::support::prometheus::samples;
use crate::support::wait::wait_until;

#[test]
#[ignore = "needs foreign programs"]
fn the_browsers_of_a_crawler_and_the_pages_that_wait_for_them_are_shown() {
    let is_released = Arc::new(AtomicBool::new(false));
    let held = Arc::clone(&is_released);
    let site = Site { hosts: 3, ..Site::default() };
    let origin = Origin::serve_with(site, move |hit| match hit.path.as_str() {
        "/page" => Some(html_response("<script src=/held></script>")),
        "/held" => Some(OriginResponse::Held(Arc::clone(&held))),
        _ => None,
    });
    let flags = ["--allow-private", "--render=always", "--render-slots=1"];
    let patient = ["--render-wait=10m", "--timeout=10m", "--quiet"];
    let server = Server::start_up(&[&flags[..], &patient].concat());
    for host in 0..3 {
        run_at(&server, &["pub", "new-url", &origin.url(host, "/page")]).expect_code(0);
    }
    let wait_for = |pages: u64, waiting: u64| -> Value {
        wait_until(&format!("{pages} pages in a browser, {waiting} that wait"), || {
            let status = run_json_at(&server, &["status"]).remove(0);
            let group = status["groups"].get(0).cloned().unwrap_or_default();
            let is_so = group["browser-pages"] == pages && group["browser-waiting"] == waiting;
            (is_so && group["browser-bytes"].as_u64() > Some(1 << 20)).then_some(group)
        })
    };
    let group = wait_for(1, 2);
    assert!(group["browsers"].as_u64() >= Some(1), "{group}");
    assert_eq!(group["browser-restarts"], 0, "{group}");
    let status = run_at(&server, &["status"]).stdout().join("\n");
    assert!(status.contains(" browser") && status.contains(" 0 restarts), "), "{status}");
    let members = run_at(&server, &["group", "members"]).stdout().join("\n");
    assert!(members.contains(" 1/1+2 "), "{members}");

    let http = HttpClient::new(&server);
    let figures = samples(&http.request("GET", "/metrics", &[]).body);
    let figure = |name: &str| figures[&format!("tidings_crawler_browser{name}")];
    assert_eq!(figure("_pages{state=\"rendering\"}"), 1);
    assert_eq!(figure("_pages{state=\"waiting\"}"), 2);
    assert_eq!(figure("s_ended_total{reason=\"lost\"}"), 0);
    assert!(figure("s") >= 1 && figure("_resident_memory_bytes") > 1_000_000, "{figures:?}");
    assert!(figure("_pages_left") >= 1, "{figures:?}");

    let address = format!("{}/", http.base_url);
    let shown = Script::start("browsers", &[&address]).finish();
    assert!(shown.as_str().unwrap().ends_with(" left, 0 restarts)"), "{shown}");
    is_released.store(true, Ordering::SeqCst);
    wait_for(0, 0);
}
