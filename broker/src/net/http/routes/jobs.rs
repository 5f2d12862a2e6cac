//! Jobs.

use serde_json::json;
use tidings_protocol::status::{JobDryRun, JobState, JobStatus, SeedStatus};
use tidings_protocol::{JobAction, JobSettings, TRACEPARENT};

use super::super::openapi::schema::{
    Schema, count, either, flag, list, named, number, object, one_of, pattern, status, text,
};
use super::super::openapi::{Operation, Param};
use super::super::{jobs, retry};
use super::groups::{OF_QUEUE, part_of_list};
use super::params::{self, DURATION, URL, WORD, after, any_number, limit, of_group};
use super::{Route, delete, get, patch, post};

/// A request about a job.
fn of_job(operation: Operation) -> Operation {
    operation.part(params::job()).query([of_group()]).refuses(OF_QUEUE)
}

/// A request that changes a job, and is answered with it.
fn change(path: &'static str, id: &str, summary: &str, action: JobAction<'static>) -> Route {
    of_job(post(path, id, summary)).ok("The job and its counts", "Job").by(jobs::change(action))
}

pub(super) fn routes() -> Vec<Route> {
    let open = "Open a job, or the next pass of a finished job, and add seeds";
    let show = "Return a job. With `wait` the response comes when the pass is done, or after that \
                time";
    let wait = "How long to wait for the end of the pass; at most 5m. Default: no wait";
    let set = "Change settings of a job that runs. Settings that are left out do not change; \
               `null` removes one";
    let changed = "The job and its counts; with `dry`, what the change would drop";
    let retry = "Fetch the failed pages of a finished job again, as its next pass";
    let pass = "The pass whose pages are fetched again. Default: the newest";
    let reasons = "Only pages with one of these reasons, with commas between them";
    let reasons = Param::new("reason", pattern(WORD), reasons).example("timeout,try-later");
    vec![
        get("/jobs", "listJobs", "List jobs, the newest first")
            .query([
                of_group(),
                Param::new("state", one_of(JobState::WORDS), "Only jobs in this state"),
                after(),
                limit(1000),
            ])
            .ok("The jobs", "Jobs")
            .refuses(OF_QUEUE)
            .by(jobs::jobs),
        post("/jobs", "openJob", open)
            .query([of_group()])
            .json_body("Name, seeds and settings of the job", "NewJob")
            .ok("The job and its counts", "Job")
            .refuses(OF_QUEUE)
            .by(jobs::open),
        of_job(get("/jobs/{job}", "showJob", show))
            .query([Param::new("wait", pattern(DURATION), wait)])
            .ok("The job and its counts", "Job")
            .by(jobs::job),
        of_job(patch("/jobs/{job}", "setJob", set))
            .json_body("The settings", "JobChanges")
            .json(200, changed, either(["Job", "JobDryRun"].map(named)))
            .by(jobs::set),
        of_job(delete("/jobs/{job}", "deleteJob", "Delete a finished job"))
            .answer(204, "The job is deleted", [])
            .by(jobs::delete),
        of_job(post("/jobs/{job}/urls", "addSeeds", "Add seeds to a job"))
            .json_body("The seeds and their settings", "Seeds")
            .ok("How many seeds were new, and how many known", "Seeded")
            .by(jobs::add),
        change(
            "/jobs/{job}/close",
            "closeJob",
            "Close a job: it expects no more seeds",
            JobAction::Close,
        ),
        change(
            "/jobs/{job}/cancel",
            "cancelJob",
            "Cancel a job: drop its waiting entries, and let tasks in flight finish",
            JobAction::Cancel,
        ),
        change(
            "/jobs/{job}/pause",
            "pauseJob",
            "Pause a job: release no tasks until it is resumed",
            JobAction::Pause,
        ),
        change("/jobs/{job}/resume", "resumeJob", "Resume a paused job", JobAction::Resume),
        of_job(post("/jobs/{job}/retry", "retryJob", retry))
            .query([Param::new("pass", number(1, u64::MAX), pass), reasons])
            .ok("The pages that are queued, and their pass", "RetriedJob")
            .by(retry::retry),
    ]
}

pub(super) fn schemas() -> Vec<(&'static str, Schema)> {
    let examples = list(text()).with("maxItems", 20);
    let dry_run = status(JobDryRun::fields()).field(
        "examples",
        examples,
        "Some of those that would not belong to it",
    );
    let seeds = object()
        .field("urls", urls(), "Seeds")
        .option("prio", number(-1000, 1000), "Higher goes first")
        .option("after", pattern(DURATION), "Wait before the first fetch; up to 3650d")
        .option(
            "render",
            one_of(&["yes", "no", "auto"]),
            "Whether the pages are rendered in a browser; without it as the job says",
        );
    let retried = object()
        .field("job", text(), "Name of the job")
        .field(
            "pass",
            count().with("minimum", 1),
            "The pass that fetches them; the newest one if there are none",
        )
        .field("pages", count(), "Pages that are fetched again");
    vec![
        // The rate is only in the lines of `watch`, which HTTP does not have.
        ("Job", status(JobStatus::fields()).without("rate")),
        ("Jobs", part_of_list("jobs", named("Job"))),
        ("NewJob", new_job()),
        ("JobChanges", changes()),
        ("JobDryRun", dry_run),
        ("Seeds", seeds),
        ("RetriedJob", retried),
        ("Seeded", status(SeedStatus::fields())),
    ]
}

fn urls() -> Schema {
    list(pattern(URL).about("A URL, as one word")).with("maxItems", 10_000)
}

fn new_job() -> Schema {
    let job = object()
        .field("job", params::name(), "Name of the job")
        .option("urls", urls(), "Seeds")
        .option("close", flag(), "Close the job after its seeds are added");
    params::settings::<JobSettings>(job, |name| name != TRACEPARENT, |schema| schema)
}

fn changes() -> Schema {
    let is_changeable = |name| JobSettings::CHANGEABLE.contains(&name);
    params::settings::<JobSettings>(object(), is_changeable, Schema::or_null)
        .with("anyOf", JobSettings::CHANGEABLE.map(|key| json!({ "required": [key] })).to_vec())
        .option("dry", flag(), "Change nothing, and return what the change would drop")
        .option("after", any_number(), "Continue a dry run: the `next` of the response before")
}
