//! Groups, and what waits in them.

use tidings_protocol::status::{
    ChangedEntriesStatus, DamagedGroupStatus, DrainStatus, Field, GroupStatus, KeyStatus, ListEnd,
    ListedMember, ListedRule, RuleStatus, ScheduleStatus, TaskState, TaskStatus,
};
use tidings_protocol::{GroupAction, GroupSettings};

use super::super::manage;
use super::super::openapi::schema::{
    Schema, either, flag, list, named, number, object, one_of, pattern, status, text,
};
use super::super::openapi::{Operation, Param};
use super::params::{
    self, DURATION, TIME_SPAN, WORD, after, behind, dry, entry, limit, matching, of_job, of_key,
};
use super::{Route, delete, get, post, put};

/// Refusals of every command about a group.
pub(super) const OF_QUEUE: &[u16] = &[404, 409, 503, 507];

pub(super) fn routes() -> Vec<Route> {
    [own_routes(), action_routes(), rule_routes(), list_routes(), dead_letter_routes()]
        .into_iter()
        .flatten()
        .collect()
}

/// A request about a group.
fn of_group(operation: Operation) -> Operation {
    operation.part(params::group()).refuses(OF_QUEUE)
}

fn own_routes() -> Vec<Route> {
    let found = "The group; if its log is damaged, the problem and the remedy";
    let set = "Create a group, or change its settings. Settings that are left out do not change";
    let force = "yes: also if members that are not connected hold tasks. Default: no";
    let what = Param::new("what", pattern(WORD), "A URL or a key").required();
    vec![
        get("/groups", "listGroups", "List all groups")
            .ok("The names of the groups", "Groups")
            .by(manage::groups),
        get("/groups/{group}", "showGroup", "Return a group")
            .part(params::group())
            .json(200, found, either([named("Group"), named("DamagedGroup")]))
            .refuses(&[404, 503, 507])
            .by(manage::group),
        put("/groups/{group}", "putGroup", set)
            .part(params::group())
            .json_body("The settings", "GroupSettings")
            .ok("The group, its counts and settings", "Group")
            .refuses(&[409, 503, 507])
            .by(manage::put_group),
        of_group(delete("/groups/{group}", "deleteGroup", "Delete a group and all its entries"))
            .query([Param::new("force", one_of(&["yes", "no"]), force)])
            .answer(204, "The group is deleted", [])
            .by(manage::delete_group),
        get("/explain", "explain", "Explain why a URL or a key waits, and until when")
            .query([what, params::of_group()])
            .ok("The explanation", "Explanation")
            .refuses(OF_QUEUE)
            .by(manage::explain),
    ]
}

fn action_routes() -> Vec<Route> {
    let pause = "Pause a group: release no tasks until it is resumed";
    let purge = "Drop waiting entries: all without a parameter, else a part of those that match \
                 every parameter";
    let purged = "Without a parameter the group, its counts and settings; else the number of \
                  entries of the part";
    let bump = "Change the priority of waiting entries: a part of those that match every parameter";
    let prio = "The new priority; higher goes first, and 0 is the default of all entries";
    let prio = Param::new("prio", number(-1000, 1000), prio).required().example(10);
    let member = || {
        let about = "The first digits of the member in the list of members, or a name that only \
                     it has";
        Param::new("member", pattern(WORD), about).required()
    };
    vec![
        of_group(post("/groups/{group}/pause", "pauseGroup", pause))
            .ok("The group, its counts and settings", "Group")
            .by(manage::change(GroupAction::Pause)),
        of_group(post("/groups/{group}/resume", "resumeGroup", "Resume a paused group"))
            .ok("The group, its counts and settings", "Group")
            .by(manage::change(GroupAction::Resume)),
        of_group(post("/groups/{group}/purge", "purgeGroup", purge))
            .query([of_key(), of_job(), matching(), dry(), behind()])
            .json(200, purged, either(["Group", "Dropped", "Matched"].map(named)))
            .by(manage::change(GroupAction::Purge)),
        of_group(post("/groups/{group}/bump", "bumpEntries", bump))
            .query([prio, of_key(), of_job(), matching(), dry(), behind()])
            .json(
                200,
                "The number of entries of the part",
                either(["Bumped", "Matched"].map(named)),
            )
            .by(manage::change(GroupAction::Bump)),
        of_group(post(
            "/groups/{group}/drain",
            "drainMember",
            "Drain a member: it is given no further tasks",
        ))
        .query([member()])
        .ok("The member", "Member")
        .by(manage::change(GroupAction::Drain)),
        of_group(post(
            "/groups/{group}/undrain",
            "undrainMember",
            "Give tasks to a drained member again",
        ))
        .query([member()])
        .ok("The member", "Member")
        .by(manage::change(GroupAction::Undrain)),
    ]
}

fn rule_routes() -> Vec<Route> {
    let set = "Set the rule of a key, in place of an earlier one. The response comes when no \
               request to a key is in flight that a rule blocks or pauses";
    let key = || {
        let about = "A key, or `*.` and a host for this host and all below it";
        let key = pattern("^[^\\s\\x00-\\x1f\\x7f-\\x9f/]+$");
        Param::new("key", key, about).example("*.example.org")
    };
    vec![
        of_group(get("/groups/{group}/rules", "listRules", "List the rules of a group"))
            .query([after(), limit(100)])
            .ok("The rules, in the order in which they were set", "Rules")
            .by(manage::list(GroupAction::Rules, "rules", &[])),
        of_group(put("/groups/{group}/rules/{key}", "putRule", set))
            .part(key())
            .json_body("What the rule says", "RuleSettings")
            .ok("The rule", "Rule")
            .by(manage::put_rule),
        of_group(delete("/groups/{group}/rules/{key}", "deleteRule", "End the rule of a key"))
            .part(key())
            .answer(204, "The rule has ended", [])
            .by(manage::delete_rule),
    ]
}

fn list_routes() -> Vec<Route> {
    let state = "Only entries in this state. Without it, all that are not finished, and the dead \
                 letters";
    let state = Param::new("state", one_of(TaskState::WORDS), state);
    let key = Param::new("key", pattern(WORD), "Only this key, even if nothing waits for it");
    vec![
        of_group(get("/groups/{group}/members", "listMembers", "List the members of a group"))
            .query([after(), limit(100)])
            .ok("The members", "Members")
            .by(manage::list(GroupAction::Members, "members", &[])),
        of_group(get("/groups/{group}/tasks", "listTasks", "List the entries of a group"))
            .query([state, entry(), of_key(), of_job(), matching(), after(), limit(100)])
            .ok("The entries", "Tasks")
            .by(manage::list(GroupAction::Tasks, "tasks", &[])),
        of_group(get("/groups/{group}/keys", "listKeys", "List the keys with waiting entries"))
            .query([key, of_job(), after(), limit(100)])
            .ok("The keys", "Keys")
            .by(manage::list(GroupAction::Keys, "keys", &[])),
        of_group(get(
            "/groups/{group}/schedules",
            "listSchedules",
            "List the schedules of a group",
        ))
        .query([of_key(), matching(), after(), limit(100)])
        .ok("The schedules", "Schedules")
        .by(manage::list(GroupAction::Schedules, "schedules", &[])),
    ]
}

fn dead_letter_routes() -> Vec<Route> {
    let retry = "Queue dead letters again: all, or those that match every parameter";
    let drop = "Drop dead letters: all, or those that match every parameter";
    let selection = || [entry(), of_key(), of_job(), matching()];
    vec![
        of_group(get("/groups/{group}/dead", "listDead", "List the dead letters of a group"))
            .query(selection())
            .query([after(), limit(100)])
            .ok("The dead letters", "Dead")
            .by(manage::list(GroupAction::Tasks, "dead", &[("state", "dead")])),
        of_group(post("/groups/{group}/dead/retry", "retryDead", retry))
            .query(selection())
            .ok("The number of dead letters", "Retried")
            .by(manage::change(GroupAction::Retry)),
        of_group(post("/groups/{group}/dead/drop", "dropDead", drop))
            .query(selection())
            .ok("The number of dead letters", "Dropped")
            .by(manage::change(GroupAction::Drop)),
    ]
}

pub(super) fn schemas() -> Vec<(&'static str, Schema)> {
    let damaged = status(DamagedGroupStatus::fields())
        .field("problem", text(), "What is damaged")
        .field("remedy", text(), "How to repair it");
    let lines = "The lines that EXPLAIN of the line protocol returns";
    let explanation = object().field("what", text(), "").field("summary", text(), "").field(
        "lines",
        list(text()),
        lines,
    );
    // The rate is only in the lines of `watch`, which HTTP does not have.
    let group = status(GroupStatus::fields()).without("rate");
    vec![
        ("Groups", object().field("groups", list(text()), "")),
        ("GroupSettings", params::settings::<GroupSettings>(object(), |_| true, |schema| schema)),
        ("Group", group),
        ("DamagedGroup", damaged),
        ("Task", status(TaskStatus::fields())),
        ("Tasks", part_of_list("tasks", named("Task"))),
        ("Dead", part_of_list("dead", named("Task"))),
        ("Keys", part_of_list("keys", status(KeyStatus::fields()))),
        ("Schedules", part_of_list("schedules", status(ScheduleStatus::fields()))),
        ("Members", part_of_list("members", status(ListedMember::fields()))),
        ("RuleSettings", rule_settings()),
        ("Rule", status(RuleStatus::fields())),
        ("Rules", part_of_list("rules", status(ListedRule::fields()))),
        ("Member", status(DrainStatus::fields())),
        ("Retried", changed(&["retried"], &["blocked"])),
        ("Dropped", changed(&["dropped"], &["next"])),
        ("Bumped", changed(&["bumped"], &["next"])),
        ("Matched", changed(&["matched"], &["next"])),
        ("Explanation", explanation),
    ]
}

/// A part of a list, with its items in the field `key`.
pub(super) fn part_of_list(key: &str, item: Schema) -> Schema {
    status(ListEnd::fields()).without("listed").field(key, list(item), "")
}

/// How many entries a change was about: the group, a field of [`ChangedEntriesStatus`] that is
/// always there, and one that may be.
fn changed(always: &[&str], maybe: &[&str]) -> Schema {
    let fields = ChangedEntriesStatus::fields().into_iter().filter_map(|field| {
        let required = field.key == "group" || always.contains(&field.key);
        (required || maybe.contains(&field.key)).then_some(Field { required, ..field })
    });
    status(fields.collect())
}

fn rule_settings() -> Schema {
    object()
        .about("At least one of block, pause, delay and parallel")
        .with("example", serde_json::json!({ "block": true, "note": "abuse-2381" }))
        .option(
            "block",
            flag(),
            "Whether nothing is released for the key, and nothing waits for it",
        )
        .option("pause", flag(), "Whether nothing is released for the key")
        .option(
            "delay",
            pattern(DURATION),
            "The delay of the key, in place of that of the group; up to 1d",
        )
        .option(
            "parallel",
            number(1, 1000),
            "The largest number of tasks of the key in flight, in place of that of the group",
        )
        .option(
            "for",
            pattern(TIME_SPAN),
            "The time after which the rule ends by itself; at least 1s. Default: it does not",
        )
        .option(
            "note",
            pattern("^[^\\s\\x00-\\x1f\\x7f-\\x9f]+$").with("maxLength", 200),
            "A note of the operator, one word of at most 200 bytes",
        )
}
