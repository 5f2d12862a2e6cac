//! A short form of the work `rendered`: the origin judges a crawl of pages that a script makes.
//! Needs the program `tidings`, which `cargo test --workspace` builds, and Chromium.

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;
use tidings_bench::origin::{Origin, RequestTarget, Site};

#[test]
fn each_page_is_rendered_once_with_one_request_per_host_at_a_time() {
    let site = Site {
        hosts: 3,
        pages: 4,
        page_bytes: 2000,
        links: 10,
        // Without it, requests cannot overlap at the origin.
        response_delay: Duration::from_millis(20),
        crawl_delay: None,
        is_scripted: true,
    };
    let origin = Origin::serve(site, (Ipv4Addr::UNSPECIFIED, 0).into()).unwrap();
    let folder = TempDir::new().unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_tidings-bench")).with_file_name("tidings");
    let mut command = Command::new(program);
    command.args(["crawl", "--allow-private", "--delay=0", "--render=always"]);
    command.args(origin.seeds()).current_dir(folder.path()).env_remove("TIDINGS_CONFIG");
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let log = origin.request_log();
    let verdict = log.judge(&site);
    assert!(verdict.is_clean() && verdict.unlinked == 0, "{verdict:?}");
    assert_eq!(verdict.overlapping, 0);
    let scripts = log.requests.iter().filter(|request| request.target == RequestTarget::Script);
    assert_eq!(scripts.count(), 3, "each host is asked for its script once");
}
