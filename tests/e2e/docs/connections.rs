//! Every byte to a server of others passes the address guard when its connection is made. So only
//! few files open connections or resolve names, and this test lists them.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Calls that open a connection or resolve a name, and the files that may contain them.
const CALLS: [(&[&str], &[&str]); 3] = [
    (
        &["TcpStream::connect", "TcpSocket::", "UdpSocket::"],
        &[
            // The only one for servers of others.
            "egress/src/connect/dial.rs",
            // To the broker.
            "protocol/client/src/connection/dial.rs",
            // Whether the broker's HTTP listens.
            "src/commands/dashboard.rs",
            // To a broker of the same community.
            "src/commands/broker/cluster/relay.rs",
            // To the ZeroMQ endpoint that the operator named.
            "connectors/src/zmq/reachability.rs",
            // The address that the broker of this folder wrote, and sends nothing.
            "src/flags/address.rs",
            // Addresses of servers that have answered, so the guard has let them pass.
            "subscriber/src/worker/network.rs",
            // Binds the address of a proxy that never answers, and connects to nothing.
            "subscriber/browser/src/process/mod.rs",
            // The program of the tests, which fetches from the server of a test.
            "subscriber/browser/src/bin/render.rs",
        ],
    ),
    (
        &["lookup_host", "to_socket_addrs"],
        &[
            "egress/src/connect/resolve/mod.rs",
            // Addresses on which the broker listens.
            "src/flags/address.rs",
            // Shows the judgement on each address, and connects to none.
            "src/commands/probe/address.rs",
        ],
    ),
    // Both get their connections from the guard.
    (
        &["reqwest::", "client::conn::"],
        &[
            "egress/src/client/mod.rs",
            "egress/src/client/connections.rs",
            "egress/src/http/http_connection.rs",
        ],
    ),
];

#[test]
fn only_the_address_guard_opens_connections_to_servers_of_others() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = [const { BTreeSet::new() }; CALLS.len()];
    let mut open: Vec<_> = ["src", "protocol", "broker", "egress", "subscriber", "connectors"]
        .map(|folder| repository.join(folder))
        .into();
    while let Some(path) = open.pop() {
        let name = path.file_stem().unwrap().to_str().unwrap();
        if ["tests", "testing", "target", "examples"].contains(&name) {
            continue;
        }
        if path.is_dir() {
            open.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let code = fs::read_to_string(&path).unwrap();
            let code = code.split("#[cfg(test)]\nmod tests {").next().unwrap();
            let file = path.strip_prefix(repository).unwrap().to_str().unwrap().to_owned();
            for ((calls, _), files) in CALLS.iter().zip(&mut found) {
                let mut lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
                if lines.any(|line| calls.iter().any(|call| line.contains(call))) {
                    files.insert(file.clone());
                }
            }
        }
    }
    for ((calls, allowed), files) in CALLS.iter().zip(found) {
        let allowed = allowed.iter().map(|file| (*file).to_owned()).collect();
        assert_eq!(files, allowed, "files with {}", calls.join(", "));
    }
}
