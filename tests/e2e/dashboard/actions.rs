//! What an operator does on the pages, compared with commands, the origin and the audit log.

use std::collections::BTreeSet;

use serde_json::json;

use super::Script;
use super::world::World;
use crate::access::audit::wait_for_record;
use crate::support::wait::wait_until;

#[test]
#[ignore = "needs foreign programs"]
fn actions_do_what_the_page_says_and_are_audited() {
    let world = World::start();
    let said = Script::start("actions", &[&world.address(), &world.operator]).finish();
    let unread = [
        "1 dead letter dropped.",
        &format!("The schedule of {} ends.", world.origin.url(2, "/p/6")),
        "The rule of 127.1.0.2 has ended.",
        "Changed.",
        "127.1.0.2: paused.",
        "harvest has these settings now.",
        "The group archive exists.",
    ];
    let unread = unread
        .map(|done| format!("{done} The page could not be refreshed: The broker does not answer."));
    let expected = json!({
        "pause": "crawlers releases no task. Workers finish what they hold.",
        "resume": "crawlers releases tasks again.",
        "set": "Changed.",
        "asked": "3 dead letters will be queued again, with no attempt counted.",
        "partly": "1 of 3 retried; then: The broker does not answer.",
        "retry": "2 dead letters retried.",
        "preview": "2 of 5 waiting URLs would be dropped without a request:",
        "urls": [world.origin.url(0, "/p/3"), world.origin.url(0, "/p/4")],
        "change": "almanac is changed.",
        "bump": "2 waiting URLs got the priority 7.",
        "before": "5 waiting URLs of all jobs will be dropped, and those that arrive until then. \
                   Workers finish what they hold. This cannot be undone.",
        "drop": "5 waiting URLs of 127.1.0.1 dropped.",
        "nothing": "Nothing waits for 127.1.0.1.",
        "block": "127.1.0.1: blocked.",
        "unread": unread,
    });
    assert_eq!(said, expected);

    let group = wait_until("the end of the retried pages and of the schedule", || {
        let group = world.json(&["group", "show", "crawlers"]).remove(0);
        let open = ["processing", "waiting", "scheduled"];
        open.iter().all(|count| group[count] == 0).then_some(group)
    });
    assert_eq!((&group["paused"], &group["max-attempts"]), (&json!("no"), &json!(4)), "{group}");
    assert_eq!(group["dead-kept"], 1, "{group}");
    let log = world.origin.request_log();
    let retried: BTreeSet<_> = (0..5)
        .filter(|page| {
            let path = format!("/broken/{page}");
            log.paths().iter().filter(|hit| **hit == path).count() == 2
        })
        .collect();
    assert_eq!(retried, BTreeSet::from([0, 2, 4]));
    let job = world.json(&["job", "show", "almanac"]).remove(0);
    assert_eq!((&job["exclude"], &job["cancelled"]), (&json!("/p/3,/p/4"), &json!(5)), "{job}");
    let rule = json!({ "key": "127.1.0.1", "block": true, "note": "complaint%207" });
    assert!(world.json(&["host", "ls"]).contains(&rule), "{rule}");

    let audit = world.server.folder.path().join("audit.log");
    for (name, change) in [
        ("crawlers", "GROUP pause"),
        ("crawlers", "GROUP resume"),
        ("crawlers", "GROUP create"),
        ("crawlers", "GROUP retry"),
        ("crawlers", "GROUP bump"),
        ("crawlers", "GROUP purge"),
        ("crawlers", "GROUP rule"),
        ("almanac", "JOB set"),
    ] {
        let fields = [("what", "changed"), ("who", "operator"), ("way", "http")];
        wait_for_record(&audit, &[&fields[..], &[("name", name), ("change", change)]].concat());
    }
}
