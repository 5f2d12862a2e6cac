//! What a person sees and can do with and without permissions, and where the token goes.

use std::fs;

use super::Script;
use super::world::{NAMES, World};
use crate::access::tokens::create_token;
use crate::support::process::run_tidings;

#[test]
#[ignore = "needs foreign programs"]
fn permissions_decide_what_is_seen_and_done_and_the_token_stays_in_its_tab() {
    let world = World::start();
    let folder = world.server.folder.path().to_owned();
    let watcher = create_token(&folder, "watcher", &["monitor"]);
    let reader = create_token(&folder, "reader", &["sub:harvest"]);
    let state = || {
        let lists = [&["topic", "ls"][..], &["job", "ls"], &["group", "ls"], &["dead", "ls"]];
        let mut all: Vec<_> = lists.iter().flat_map(|words| world.json(words)).collect();
        // Only this changes by itself.
        for object in &mut all {
            object["rate"] = 0.into();
        }
        all
    };
    let before = state();
    let names = NAMES.join(",");
    let mut script =
        Script::start("rights", &[&world.address(), &world.operator, &watcher, &reader, &names]);
    script.when("revoke the watcher", || {
        run_tidings(&folder, &["token", "revoke", "watcher", "--yes"]).expect_code(0);
    });
    script.finish();
    assert_eq!(state(), before);
    let audited = fs::read_to_string(folder.join("audit.log")).unwrap();
    let log = world.server.process.signal_and_finish("TERM");
    let printed = format!("{audited}{}{}", log.stdout().join("\n"), log.stderr());
    for token in [&world.operator, &watcher, &reader] {
        assert!(!printed.contains(token), "a token is in the log");
    }
}
