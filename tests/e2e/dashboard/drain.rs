//! A crawler that is drained on the page, as the broker and the origin see it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::Script;
use crate::support::http_client::HttpClient;
use crate::support::origin::{Origin, OriginResponse, Site};
use crate::support::process::{Process, Server, run_at, run_json_at, tidings_command};
use crate::support::wait::{time_left, wait_until};

/// Waits until the group has a worker of this process, or none (`state` is empty), and returns it.
#[track_caller]
fn wait_for_member(server: &Server, process: u32, state: &str) -> Value {
    let suffix = format!(".{process}");
    wait_until(&format!("the state {state:?} of {process}"), || {
        let members = run_json_at(server, &["group", "members"]);
        let is_it =
            |member: &Value| member["name"].as_str().is_some_and(|name| name.ends_with(&suffix));
        let member = members.into_iter().find(is_it).unwrap_or_else(|| json!({ "state": "" }));
        (member["state"] == state).then_some(member)
    })
}

/// Publishes a page.
#[track_caller]
fn publish(server: &Server, url: &str) {
    run_at(server, &["pub", "new-url", url]).expect_code(0);
}

#[test]
#[ignore = "needs foreign programs"]
fn a_crawler_that_is_drained_on_the_page_finishes_its_page_and_leaves() {
    let (begin, requests) = mpsc::channel();
    let is_released = Arc::new(AtomicBool::new(false));
    let held = Arc::clone(&is_released);
    let origin = Origin::serve_with(Site { hosts: 3, pages: 1, ..Site::default() }, move |hit| {
        if hit.host == Site::host(0) && hit.path == "/p/0" {
            begin.send(()).unwrap();
            return Some(OriginResponse::Held(Arc::clone(&held)));
        }
        None
    });
    let server = Server::start_broker();
    let stores = [TempDir::new().unwrap(), TempDir::new().unwrap()];
    let start = |store: &TempDir| -> (Process, String) {
        // The browser may be slow.
        let broker = server.address_text();
        let arguments = ["crawl", "--broker", &broker, "--allow-private", "--timeout", "10m"];
        let arguments = arguments.into_iter().chain(["--data", "."]);
        let crawler = Process::start(&mut tidings_command(store.path(), arguments));
        let member = wait_for_member(&server, crawler.id(), "active");
        (crawler, member["name"].as_str().unwrap().to_owned())
    };
    let (crawler, name) = start(&stores[0]);
    let id = crawler.id();
    let page = |host| origin.url(host, "/p/0");
    publish(&server, &page(0));
    requests.recv_timeout(time_left()).expect("its request");
    let (other, other_name) = start(&stores[1]);

    let address = format!("{}/", HttpClient::new(&server).base_url);
    let mut script = Script::start("drain", &[&address, &name, &other_name]);
    let wait_for_done = |count: u64| {
        wait_until(&format!("{count} pages of the other crawler"), || {
            let member = wait_for_member(&server, other.id(), "active");
            (member["done"].as_u64() == Some(count)).then_some(())
        });
    };
    script.when("publish a page of another host", || {
        assert_eq!(wait_for_member(&server, id, "draining")["held"], 1);
        publish(&server, &page(1));
        wait_for_done(1);
    });
    script.when("answer the request of the drained crawler", || {
        is_released.store(true, Ordering::SeqCst);
    });
    let mut crawler = Some(crawler);
    script.when("stop the drained crawler", || {
        let member = wait_for_member(&server, id, "drained");
        assert_eq!((&member["held"], &member["done"]), (&json!(0), &json!(1)), "{member}");
        crawler.take().unwrap().signal_and_finish("TERM").expect_code(0);
        wait_for_member(&server, id, "");
    });
    script.when("publish a page for no crawler", || {
        wait_for_member(&server, other.id(), "drained");
        publish(&server, &page(2));
        wait_until("its entry", || {
            let group = run_json_at(&server, &["group", "show", "crawlers"]).remove(0);
            (group["waiting"] == 1).then_some(())
        });
    });
    script.when("wait for its page", || wait_for_done(2));
    let further = |name: &str| {
        format!("{name} gets no further task. It can be stopped without loss when it is drained.")
    };
    let again = format!("{other_name} gets tasks again.");
    assert_eq!(script.finish(), json!([further(&name), further(&other_name), again]));
    let log = origin.request_log();
    log.expect_no_duplicates();
    assert_eq!(log.distinct_pages().len(), 3);
}
