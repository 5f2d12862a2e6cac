//! Making a community, starting its brokers, and what is refused.

use tempfile::TempDir;

use super::community::{Community, broker_arguments, create};
use crate::support::line_connection::LineConnection;
use crate::support::nats::NatsServers;
use crate::support::nc::run_nc;
use crate::support::ports::free_address;
use crate::support::process::{ProcessOutput, Server, run_tidings};

#[test]
#[ignore = "needs foreign programs"]
fn servers_that_may_lose_what_they_confirm_are_refused() {
    let (servers, folder) = (NatsServers::start_with("max_file: 1GB"), TempDir::new().unwrap());
    let urls = servers.urls();
    run_tidings(folder.path(), &["cluster", "create", "east", "--cluster", &urls])
        .expect_code(1)
        .expect_stderr("set `sync_interval: always` in its jetstream block");
    let nowhere = free_address().to_string();
    run_tidings(folder.path(), &["cluster", "status", "east", "--cluster", &nowhere])
        .expect_code(1)
        .expect_stderr("no server of NATS answers");
    run_tidings(folder.path(), &["cluster", "status", "east"])
        .expect_code(2)
        .expect_stderr("--cluster is missing");
}

#[test]
#[ignore = "needs foreign programs"]
fn a_community_is_made_once_and_its_brokers_are_told_apart() {
    let (servers, folder) = (NatsServers::start(), TempDir::new().unwrap());
    create(&servers, &folder);
    let urls = servers.urls();
    let again = ["cluster", "create", "east", "--cluster", &urls];
    run_tidings(folder.path(), &again).expect_code(1).expect_stderr("east exists");
    let status = ["cluster", "status", "east", "--cluster", &urls];
    run_tidings(folder.path(), &status).expect_code(1).expect_stderr("no broker of east lives");

    let start = |node: &str, more: &[&str]| -> ProcessOutput {
        let (lines, relay) = (free_address().to_string(), free_address().to_string());
        let arguments = broker_arguments(&servers, node);
        let own = ["--listen", &lines, "--relay-listen", &relay];
        let words: Vec<_> =
            arguments.iter().map(String::as_str).chain(own).chain(more.iter().copied()).collect();
        run_tidings(folder.path(), &words)
    };
    start("n 1", &[]).expect_code(2).expect_stderr("expected 1 to 32 of the characters");
    let start_in = |community: &str, relay: &str| {
        let lines = free_address().to_string();
        let words = ["broker", "--cluster", &urls, "--community", community, "--node", "n1"];
        let own = ["--listen", &lines, "--relay-listen", relay];
        run_tidings(folder.path(), &[&words[..], &own].concat())
    };
    start_in("east", "0.0.0.0:0")
        .expect_code(2)
        .expect_stderr("the address at which the other brokers reach this one");
    start_in("eats", "127.0.0.1:0")
        .expect_code(1)
        .expect_stderr("there is no community eats; make it once");
    start("n1", &["--public-url", "https://a.example"]).expect_code(2).expect_stderr("--no-websub");
    let missing = ["broker", "--cluster", &urls, "--community", "east"];
    run_tidings(folder.path(), &missing).expect_code(2).expect_stderr("--cluster needs --node");
    // The data of a broker of its own is not that of a copy.
    let own = Server::start_broker();
    assert_eq!(run_nc(own.address, "http://a.example/\n").len(), 2);
    let data = own.data_dir().display().to_string();
    let (process, _kept) = (own.process, own.folder);
    process.signal_and_finish("TERM");
    start("n1", &["--data", &data])
        .expect_code(1)
        .expect_stderr("holds the data of a broker of its own");
    let leave = ["cluster", "leave", "--data", &data];
    run_tidings(folder.path(), &leave)
        .expect_code(1)
        .expect_stderr("not of a broker of a community");
}

#[test]
#[ignore = "needs foreign programs"]
fn every_client_is_served_at_every_broker() {
    let mut community = Community::start();
    for broker in &community.brokers {
        let lines = run_nc(broker.address, "a\nb\n");
        assert_eq!(lines.len(), 2, "{lines:?}");
    }
    let (leader, epoch) = community.leader();
    for broker in &community.brokers {
        let mut client = LineConnection::connect_client(broker.address);
        assert_eq!(client.request("SUB new-url from=first"), "+OK");
        for seq in 1..=6 {
            let payload = if seq % 2 == 1 { "a" } else { "b" };
            assert_eq!(client.read_line(), format!("MSG new-url {seq} {payload}"));
        }
    }
    // A second broker with the name of one that lives, and a copy without its community.
    let standby = (leader + 1) % 3;
    let twin = TempDir::new().unwrap();
    let arguments = broker_arguments(&community.servers, &format!("n{standby}"));
    let (lines, relay) = (free_address().to_string(), free_address().to_string());
    let own = ["--listen", &lines, "--relay-listen", &relay];
    let words: Vec<_> = arguments.iter().map(String::as_str).chain(own).collect();
    run_tidings(twin.path(), &words)
        .expect_code(1)
        .expect_stderr(&format!("another broker of the community is named n{standby}"));
    community.end_broker(standby, "TERM").expect_code(0);
    let folder = community.brokers[standby].folder.path();
    run_tidings(folder, &["broker", "--listen", &lines])
        .expect_code(1)
        .expect_stderr("belongs to a broker of a community; start it with --cluster");
    community.start_broker(standby);

    let output = community.run(&["step-down", "east"]).expect_code(0);
    assert!(output.stdout()[0].ends_with(&format!(" leads, after n{leader}")), "{output:?}");
    let (next, later) = community.leader();
    assert!(next != leader && later > epoch, "n{next} leads in {later}");
    let lines = run_nc(community.brokers[leader].address, "c\n");
    assert_eq!(lines.len(), 2, "{lines:?}");
}
