//! A broker that is away for a while.

use super::Script;
use crate::support::ports::free_address;
use crate::support::process::{Server, run_at};

#[test]
#[ignore = "needs foreign programs"]
fn the_page_says_that_the_broker_is_away_and_comes_back_by_itself() {
    let at = free_address().to_string();
    let arguments = ["broker", "--http", &at];
    let publish = |server: &Server, text: &str| {
        run_at(server, &["pub", "harvest", text]).expect_code(0);
    };
    let server = Server::start(&arguments);
    publish(&server, "event-1");
    let mut script = Script::start("away", &[&format!("http://{at}/")]);
    let Server { process, address, folder } = server;
    script.when("kill the broker", || drop(process));
    let mut server = None;
    script.when("start the broker", || {
        publish(server.insert(Server::start_at_address(address, folder, &arguments)), "event-2");
    });
    let running = server.as_ref().unwrap();
    script.when("stop the broker", || running.process.signal("STOP"));
    script.when("continue the broker", || {
        running.process.signal("CONT");
        publish(running, "event-3");
    });
    script.when("restart the broker", || {
        let restarted = server.take().unwrap().restart_at_same_address("TERM", &arguments);
        publish(server.insert(restarted), "event-4");
    });
    script.finish();
}
