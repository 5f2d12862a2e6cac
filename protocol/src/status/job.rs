//! Jobs: their status while they run, and the announcement of their end.

use super::group::PageMetricsStatus;
use super::value::{DurationMs, Rate};

fields! {
    /// Results of a pass's URLs. All are final.
    #[derive(Copy)]
    PassCounts {
        /// Pages that were fetched.
        completed: u64 = "completed",
        /// Responses that redirected elsewhere.
        redirects: u64 = "redirects",
        /// URLs that failed after their last attempt.
        failed: u64 = "failed",
        /// URLs forbidden by robots.txt.
        robots: u64 = "robots",
        /// URLs that the worker found out of scope, or that a change of the scope excluded.
        scope: u64 = "scope",
        /// URLs that a rule of the operator blocks.
        blocked: u64 = "blocked",
        /// URLs that the worker recognised as a trap.
        trap: u64 = "trap",
        /// URLs that were left when the budget was used up.
        budget: u64 = "budget",
        /// Seeds that the pass had already met.
        duplicates: u64 = "duplicates",
        /// URLs dropped because the job was cancelled or the group purged.
        cancelled: u64 = "cancelled",
        /// URLs that the pass admitted.
        found: u64 = "found",
    }
}

words! {
    /// The state of a job.
    JobState {
        /// It accepts seeds.
        Open = "open",
        /// It accepts no more seeds, and ends when nothing of it waits.
        Closed = "closed",
        /// Nothing of it is released.
        Paused = "paused",
        /// Its pass is over.
        Done = "done",
    }
}

status! {
    /// A job: `JOB show`, `ls`, `watch`, and every action that changes it.
    JobStatus(job: String) {
        /// The job's number; another job of this name has another.
        number: u64 = "number",
        /// The pass, from 1.
        pass: u64 = "pass",
        /// Its state.
        state: JobState = "state",
        /// Entries that wait for their key, their time or the job.
        pending: u64 = "pending",
        /// Entries that wait only for a member.
        queued: u64 = "queued",
        /// Entries that members hold.
        processing: u64 = "processing",
        /// The results so far.
        counts: PassCounts,
        /// When the pass was opened (RFC 3339).
        opened: String = "opened",
        /// When it was done; absent before.
        ended: Option<String> = "ended",
        /// What workers reported about its pages.
        metrics: PageMetricsStatus,
        /// Which links belong to it; not in a list of jobs.
        scope_rule: Option<String> = "scope-rule",
        /// The largest number of links from a seed; not in a list of jobs.
        max_depth: Option<u64> = "max-depth",
        /// The largest number of completed pages; not in a list of jobs.
        max_pages: Option<u64> = "max-pages",
        /// The largest number of completed pages of one key; not in a list of jobs.
        max_per_host: Option<u64> = "max-per-host",
        /// How long after its opening it releases entries; not in a list of jobs.
        max_time: Option<DurationMs> = "max-time",
        /// Pages that it includes; not in a list of jobs.
        include: Option<Vec<String>> = "include",
        /// Pages that it excludes; not in a list of jobs.
        exclude: Option<Vec<String>> = "exclude",
        /// Which pages are rendered; not in a list of jobs.
        render: Option<String> = "render",
        /// Where its end is sent; not in a list of jobs.
        callback: Option<String> = "callback",
        /// Recent pages per second; only in `JOB watch`.
        rate: Option<Rate> = "rate",
    }
}

status! {
    /// What a change of a job would drop: the answer to `JOB set` with `dry=yes`.
    JobDryRun(job: String) {
        /// Waiting URLs that would not belong to the job any more.
        would_drop: u64 = "would-drop",
        /// Waiting URLs that were looked at.
        of: u64 = "of",
        /// Where the next part begins, if others may follow.
        next: Option<u64> = "next",
    }
}

words! {
    /// How a pass ended.
    JobResult {
        /// Everything has a result.
        Done = "done",
        /// It was cancelled.
        Cancelled = "cancelled",
    }
}

words! {
    /// A remark about the end of a pass.
    JobEndReason {
        /// The pass never had an entry.
        Empty = "empty",
    }
}

status! {
    /// The end of a pass: the answer to `JOB wait`, and the payload of `job-done`.
    JobEnd(job: String) {
        /// The job's number.
        number: u64 = "number",
        /// The pass.
        pass: u64 = "pass",
        /// How it ended.
        result: JobResult = "result",
        /// A remark.
        reason: Option<JobEndReason> = "reason",
        /// The results.
        counts: PassCounts,
        /// Where the end is sent.
        callback: Option<String> = "callback",
        /// The trace context of the command that opened the pass.
        traceparent: Option<String> = "traceparent",
        /// The group; only in `job-done`.
        group: Option<String> = "group",
        /// A number that no other announcement of the group has; only in `job-done`.
        serial: Option<String> = "serial",
    }
}

status! {
    /// The final outcome of a page: the payload of `page-ready`.
    PageStatus(url: String) {
        /// How it ended: a word of [`Outcome`](crate::Outcome).
        outcome: String = "outcome",
        /// A number that no other page has; the page keeps it when it is retried.
        page: String = "page",
        /// The group.
        group: String = "group",
        /// Why there is no page: a word for programs.
        reason: Option<String> = "reason",
        /// The same for people.
        error: Option<String> = "error",
        /// The status of the HTTP answer.
        status: Option<u64> = "status",
        /// How long the request took, in milliseconds.
        ms: Option<u64> = "ms",
        /// The size of the page, decoded.
        bytes: Option<u64> = "bytes",
        /// Whether it differs from the one that was fetched before.
        changed: Option<String> = "changed",
        /// The media type.
        content_type: Option<String> = "type",
        /// The hash of the page.
        hash: Option<String> = "hash",
        /// The target of its redirect.
        location: Option<String> = "location",
        /// Why the group has given it up; then there is a dead letter.
        gave_up: Option<String> = "gave-up",
        /// The job.
        in_job: Option<String> = "in-job",
        /// The pass of the job.
        pass: Option<u64> = "pass",
        /// Links from a seed.
        depth: Option<u64> = "depth",
        /// The number of the job.
        number: Option<u64> = "number",
        /// `item=` of the event that announced it.
        item: Option<String> = "item",
        /// `source=` of that event.
        source: Option<String> = "source",
    }
}

status! {
    /// The end of `JOB ls`.
    JobListEnd(group: String) {
        /// How many match, if the answer looked at the whole list.
        jobs: Option<u64> = "jobs",
        /// How many are listed.
        listed: u64 = "listed",
        /// Where the list continues, if there may be more.
        next: Option<u64> = "next",
    }
}

status! {
    /// The answer to `JOB add`: one of the counts is 1.
    SeedStatus(job: String) {
        /// Seeds that the pass admitted.
        new: u64 = "new",
        /// Seeds that the pass has met before.
        known: u64 = "known",
    }
}
