//! Tabs that are hidden, as the broker sees them: a browser shows only one tab of a window.

use super::Script;
use super::world::World;
use crate::support::wait::wait_until;

impl World {
    /// Waits until no HTTP connection is left but that of the request that asks.
    #[track_caller]
    fn wait_for_no_connections(&self) {
        let token = format!("Authorization: Bearer {}", self.operator);
        wait_until("the end of all connections", || {
            let metrics = self.http.request("GET", "/metrics", &["--header", &token]).body;
            metrics.contains("tidings_connections{way=\"http\"} 1\n").then_some(())
        });
    }

    /// Changes something on most pages.
    #[track_caller]
    fn change(&self) {
        self.run(&["pub", "harvest", "fourth"]);
        self.run(&["pub", "sequel", "first"]);
        self.run(&["job", "open", "sequel"]);
        let dead = self.json(&["dead", "ls"]).remove(0);
        self.run(&["dead", "drop", &dead["entry"].to_string()]);
        self.run(&["pub", "new-url", &format!("{} every=3h", self.origin.url(2, "/hourly"))]);
        wait_until("the second schedule", || {
            let group = &self.json(&["group", "show", "crawlers"])[0];
            (group["scheduled"] == 2 && group["processing"] == 0).then_some(())
        });
        self.run(&["group", "pause", "crawlers"]);
    }
}

// The broker closes a connection 30 s after its last request. So none is left only if no tab
// streams, and none has sent a request for that long.
#[test]
#[ignore = "needs foreign programs"]
fn hidden_tabs_send_nothing_and_catch_up_when_they_are_shown() {
    let world = World::start();
    let mut script = Script::start("hidden", &[&world.address(), &world.operator]);
    script.when("wait for the end of all connections", || world.wait_for_no_connections());
    script.when("change what the pages show", || world.change());
    script.when("wait for their end again", || world.wait_for_no_connections());
    assert_eq!(script.finish()["hidden"], 13);
}
