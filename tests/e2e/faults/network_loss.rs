//! A crawl on a machine that loses its network for a while.

use std::fs;
use std::process::Command;

use tempfile::TempDir;

use crate::support::process::{Process, started_by, tidings_command};

const HOSTS: usize = 40;
const PAGES: usize = 10;

/// A machine with one address range, which is its network. An origin serves all hosts of it.
const MACHINE: &str = "ip link set lo up && ip addr add 10.9.0.1/24 dev lo || exit 1
    (cd www && exec setpriv --pdeathsig KILL python3 -m http.server 8000 >/dev/null 2>&1) &
    until nc -z 10.9.0.1 8000; do sleep 0.1; done
    exec \"$@\"";

/// The flags with which `unshare` creates a network namespace on this machine.
fn unshare_flags() -> &'static str {
    let allowed = |flags: &&str| {
        let script = "ip link set lo up";
        let made = Command::new("unshare").args([flags, "sh", "-c", script]).output();
        made.unwrap().status.success()
    };
    ["-Urn", "-n"].into_iter().find(allowed).expect("cannot create a network namespace")
}

/// Runs `ip` on the machine of a process.
fn run_ip(process: &Process, flags: &str, words: &str) {
    let id = process.id().to_string();
    let mut command = Command::new("nsenter");
    command.args(["-t", &id, "-n"]);
    if flags == "-Urn" {
        command.args(["-U", "--preserve-credentials"]);
    }
    let status = command.arg("ip").args(words.split(' ')).status().unwrap();
    assert!(status.success(), "ip {words}");
}

#[test]
#[ignore = "needs foreign programs"]
fn loss_of_the_network_costs_no_page() {
    let folder = TempDir::new().unwrap();
    let www = folder.path().join("www");
    fs::create_dir(&www).unwrap();
    let pages = 0..PAGES;
    for page in pages.clone() {
        fs::write(www.join(format!("{page}.html")), "<p>A page.").unwrap();
    }
    let urls = (1..=HOSTS).flat_map(|host| {
        pages.clone().map(move |page| format!("http://10.9.0.{host}:8000/{page}.html\n"))
    });
    fs::write(folder.path().join("seeds"), urls.collect::<String>()).unwrap();
    let words = ["crawl", "--seeds", "seeds", "--depth", "0", "--allow-private", "--delay", "1s"];
    let crawl = tidings_command(folder.path(), words);
    let flags = unshare_flags();
    let mut machine = Command::new("unshare");
    machine.args([flags, "sh", "-c", MACHINE, "sh"]);
    let crawl = Process::start(&mut started_by(machine, &crawl));
    crawl.wait_for_stdout_lines(HOSTS);
    run_ip(&crawl, flags, "addr del 10.9.0.1/24 dev lo");
    crawl.wait_for_line_with("the network of this machine is away");
    run_ip(&crawl, flags, "addr add 10.9.0.1/24 dev lo");
    crawl.wait_for_line_with("the network of this machine is back");
    let stdout = crawl.finish().expect_code(0).stdout();
    let end = format!("done: {} pages, 0 failed", HOSTS * PAGES);
    assert!(stdout.last().unwrap().starts_with(&end), "{stdout:#?}");
}
