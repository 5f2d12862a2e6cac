//! Texts of waiting entries that a group keeps on the disk are damaged while the broker runs.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use crate::support::line_connection::{LineConnection, value};
use crate::support::process::Server;
use crate::support::wait::wait_until;

/// Waiting URLs on hosts of their own, with a path of this length. These are 48 MB, and a group
/// keeps 32 MB of texts in memory.
const URLS: u64 = 24_000;
const PATH_BYTES: usize = 2_000;

/// The open file without a name in which a group keeps its texts.
fn page_file(server: &Server) -> Option<PathBuf> {
    let data = server.data_dir().canonicalize().unwrap();
    let files = fs::read_dir(format!("/proc/{}/fd", server.process.id())).unwrap();
    files.map(|file| file.unwrap().path()).find(|file| {
        fs::read_link(file)
            .is_ok_and(|to| to.starts_with(&data) && to.to_string_lossy().ends_with(" (deleted)"))
    })
}

#[track_caller]
fn waiting(client: &mut LineConnection, group: &str) -> u64 {
    value(&client.request(&format!("GROUP show {group}")), "waiting").parse().unwrap()
}

#[test]
fn a_group_with_damaged_texts_stops_and_a_restart_loses_nothing() {
    let server = Server::start_broker();
    let mut client = LineConnection::connect_client(server.address);
    assert!(client.request("GROUP create g topics=t delay=0").starts_with("+OK g "));
    assert!(client.request("GROUP create other topics=u delay=0").starts_with("+OK other "));
    let mut peer = LineConnection::connect_peer(server.address);
    let filler = "x".repeat(PATH_BYTES);
    for number in 0..URLS {
        peer.send(format!("PUB t http://h{number}.example/{filler}\n"));
    }
    wait_until("all URLs to wait", || (waiting(&mut client, "g") == URLS).then_some(()));

    let file = wait_until("texts on the disk", || page_file(&server));
    let file = File::options().read(true).write(true).open(file).unwrap();
    wait_until("several megabytes of them", || {
        (file.metadata().unwrap().len() > 4 << 20).then_some(())
    });
    let length = usize::try_from(file.metadata().unwrap().len()).unwrap();
    file.write_all_at(&vec![0; length], 0).unwrap();

    let mut worker = LineConnection::connect_client(server.address);
    worker.send("JOIN g credit=1000\n");
    server.process.wait_for_line_with("cannot be read");
    let refused = client.request("GROUP show g");
    assert!(refused.starts_with("-ERR internal group g has stopped"), "{refused}");
    assert!(refused.contains("restart the broker"), "{refused}");

    assert!(client.request("PUB u http://other.example/").starts_with("+OK"));
    let mut other = LineConnection::connect_client(server.address);
    assert!(other.request("JOIN other credit=1").starts_with("+OK"));
    assert!(other.read_line().contains("http://other.example/"));

    let server = server.restart("TERM", &["broker"]);
    let mut client = LineConnection::connect_client(server.address);
    let shown = client.request("GROUP show g");
    let entries: u64 = ["waiting", "processing"]
        .map(|key| value(&shown, key).parse::<u64>().unwrap())
        .iter()
        .sum();
    assert_eq!(entries, URLS, "{shown}");
    let mut worker = LineConnection::connect_client(server.address);
    assert!(worker.request("JOIN g credit=1000").starts_with("+OK"));
    for _ in 0..1000 {
        assert!(worker.read_line().starts_with("TASK "));
    }
}
