//! The page of results, compared with `tidings sub page-ready`.

use serde_json::{Value, json};

use super::Script;
use super::world::World;
use crate::access::tokens::create_token;

/// The results on `page-ready`, the newest first.
#[track_caller]
fn results(world: &World) -> Vec<Value> {
    let topic = world.json(&["topic", "show", "page-ready"]).remove(0);
    let count = topic["kept"].to_string();
    let mut all = world.json(&["sub", "page-ready", "--from", "first", "--count", &count]);
    all.reverse();
    all
}

/// What the page shows of a result: URL, outcome, status, and whether it has changed.
fn row(result: &Value) -> Value {
    let of = |name: &str| result["attributes"][name].as_str();
    let outcome = of("outcome").unwrap();
    let reason = of("reason").map(|reason| {
        assert_eq!(reason, "try-later");
        format!("{outcome}: a status that may change later, such as 503")
    });
    let reason = reason.unwrap_or_else(|| outcome.to_owned());
    let [status, changed] = ["status", "changed"].map(|name| of(name).unwrap_or("–"));
    json!([result["target"], reason, status, changed])
}

#[test]
#[ignore = "needs foreign programs"]
fn results_are_those_that_a_subscriber_receives() {
    let world = World::start();
    let watcher = create_token(world.server.folder.path(), "watcher", &["monitor"]);
    let before = results(&world);
    let mut script = Script::start("results", &[&world.address(), &world.operator, &watcher]);
    let page = world.origin.url(2, "/p/1");
    for asked in ["announce a page", "announce it again"] {
        script.when(asked, || {
            world.run(&["pub", "new-url", &page]);
        });
    }
    let said = script.finish();
    let listed: Vec<_> = before.iter().map(row).collect();
    assert_eq!(said["listed"], json!(listed));
    let is_failed = |result: &&Value| result["attributes"]["outcome"] == "failed";
    let failed: Vec<_> = before.iter().filter(is_failed).collect();
    assert_eq!(said["failed"], failed.iter().map(|result| row(result)).collect::<Value>());
    let after = results(&world);
    let came =
        |url: &str| after.iter().filter(|result| result["target"] == url).collect::<Vec<_>>();
    assert_eq!(said["came"], row(came(&page)[1]));
    let broken = world.origin.url(1, "/broken/4");
    assert_eq!(said["said"], format!("{broken} is announced."));
    let record = said["record"].as_array().unwrap();
    let record = record.iter().map(|pair| (pair[0].as_str().unwrap().to_owned(), pair[1].clone()));
    assert_eq!(json!(record.collect::<serde_json::Map<_, _>>()), came(&broken)[1]["attributes"]);
    assert_eq!(after.len(), before.len() + 3);
}
