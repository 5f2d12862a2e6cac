//! An operator blocks hosts, over the line protocol and after a kill of the broker.

use crate::support::line_connection::LineConnection;
use crate::support::process::Server;
use crate::support::wait::wait_until;

/// Waits until the group has these rules.
#[track_caller]
fn wait_for_rules(server: &Server, rules: &[&str]) {
    let mut client = LineConnection::connect_client(server.address);
    let ok = format!("+OK crawlers matched={0} listed={0}", rules.len());
    let expected: Vec<_> = rules.iter().map(|rule| format!("+ {rule}")).chain([ok]).collect();
    wait_until(&format!("{rules:?}"), || {
        (client.request_lines("GROUP rules crawlers") == expected).then_some(())
    });
}

/// Publishes a URL for a worker, and returns the id of its task.
fn next_task(worker: &mut LineConnection, publisher: &mut LineConnection, url: &str) -> String {
    assert!(publisher.request(&format!("PUB new-url {url}")).starts_with("+OK "));
    let task = worker.read_line();
    assert!(task.starts_with("TASK crawlers:") && task.ends_with(url), "{task}");
    task.split(' ').nth(1).unwrap().to_owned()
}

// PROTOCOL: G17, G18, G19
#[test]
fn a_block_is_answered_after_the_last_request_and_outlives_a_kill() {
    let server = Server::start_broker();
    let connect = || LineConnection::connect_client(server.address);
    let (mut worker, mut publisher, mut operator) = (connect(), connect(), connect());
    assert!(worker.request("JOIN crawlers credit=5").starts_with("+OK crawlers "));
    let id = next_task(&mut worker, &mut publisher, "http://a.example/1");
    operator.send("GROUP rule crawlers key=*.Example block=yes note=abuse-1\nPING\n");
    let block = "*.example block=yes note=abuse-1";
    wait_for_rules(&server, &[block]);
    // The page that is in flight ends without children.
    worker.send(format!("LINK {id} http://b.org/ kind=redirect\n"));
    let answer = worker.request(&format!("ACK {id} outcome=redirect"));
    assert_eq!(answer, format!("+OK {id} new=0 known=0 refused=1"));
    assert_eq!(operator.read_line(), format!("+OK crawlers key={block}"));
    assert!(operator.read_line().starts_with("PONG "));

    // The rule of a client that leaves before the answer stays.
    let id = next_task(&mut worker, &mut publisher, "http://c.org/1");
    let mut gone = connect();
    gone.send("GROUP rule crawlers key=c.org block=yes\n");
    wait_for_rules(&server, &[block, "c.org block=yes"]);
    drop(gone);
    assert_eq!(worker.request(&format!("NACK {id}")), format!("+OK {id}"));

    let server = server.restart("KILL", &["broker"]);
    wait_for_rules(&server, &[block, "c.org block=yes"]);
    let mut client = LineConnection::connect_client(server.address);
    let subscribed = client.request("SUB dead-letter");
    assert!(subscribed.starts_with("+OK"), "{subscribed}");
    let mut publisher = LineConnection::connect_client(server.address);
    for url in ["http://x.a.example/robots.txt", "http://c.org/1"] {
        assert!(publisher.request(&format!("PUB new-url {url}")).starts_with("+OK "));
        let event = client.read_line();
        assert!(event.contains(" reason=blocked group=crawlers topic=new-url seq="), "{event}");
        assert!(event.ends_with(url), "{event}");
    }
    assert_eq!(
        publisher.request("GROUP unrule crawlers key=c.org"),
        "+OK crawlers key=c.org block=yes"
    );
    let mut worker = LineConnection::connect_client(server.address);
    assert!(worker.request("JOIN crawlers").starts_with("+OK crawlers "));
    next_task(&mut worker, &mut publisher, "http://c.org/2");
    let missing = publisher.request("GROUP unrule crawlers key=c.org");
    assert!(missing.starts_with("-ERR unknown "), "{missing}");
}
