//! `POST /jobs/{job}/retry`: fetches the failed pages of a pass again, as the next pass.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use axum::body::Body;
use axum::http::HeaderMap;
use serde_json::json;
use tidings_protocol::status::{JobState, JobStatus, PageStatus, Status};
use tidings_protocol::{
    Code, Command, DEFAULT_GROUP, GroupAction, GroupCommand, GroupName, JobAction, JobCommand,
    JobName, PAGE_READY_TOPIC, PassName, PassPages, ProtocolError, StartAt, TRACEPARENT,
    check_reasons, reason_of,
};

use super::client::{ConnectedClient, permissions_changed};
use super::error::HttpResult;
use super::json_objects::JsonResponse;
use super::manage::JsonResult;
use super::publish::traceparent_of;
use super::request_input::NamedRequest;
use super::topic_cursor::{NextEvents, TopicCursor};
use super::{HttpState, with_timeout};
use crate::access::Action;
use crate::topic::payloads;

/// Memory for the failed pages of one request. It is part of the memory for pages of events.
const PAGES_BYTES_MAX: usize = 16 << 20;

/// Bytes of events that are searched between two turns of other tasks.
const READ_BYTES: usize = 1 << 20;

/// How long to wait for events that the counts of a job announce. The group publishes them soon
/// after it has counted the page.
const LAST_EVENTS_MAX: Duration = Duration::from_secs(1);

/// Commands that are in progress at once.
const COMMANDS_MAX: usize = 1_000;

/// Opens the next pass with the failed pages as its seeds, and closes it. `reason` selects some of
/// them.
pub(super) async fn retry(request: NamedRequest<JobName>, body: Body) -> JsonResult {
    request.expect_no_body(&body)?;
    let NamedRequest { http, client, name, params, headers, .. } = request;
    client.check_action(Action::ManageJob(name.as_ref()))?;
    client.check_action(Action::Subscribe(PAGE_READY_TOPIC))?;
    client.check_rate()?;
    let group: GroupName = params.get("group").unwrap_or(DEFAULT_GROUP).parse()?;
    let retry = Retry { client: &client, job: &name, group: &group };
    let job = retry.run(JobAction::Show, Vec::new()).await?;
    if job.state != JobState::Done {
        let JobStatus { pass, state, .. } = job;
        // It is open, for example, if the client of an earlier retry disconnected too soon.
        let hint = if state == JobState::Open { "close or cancel it" } else { "wait for its end" };
        let text = format!("pass {pass} of {name} is {state}; {hint}, then try again");
        return Err(ProtocolError::new(Code::Conflict, text).into());
    }
    let newest = usize::try_from(job.pass).unwrap_or(usize::MAX);
    let pass = params.number("pass", newest, usize::MAX)? as u64;
    if pass > job.pass {
        let text = format!("pass={pass}: the newest pass of {name} is {newest}");
        return Err(ProtocolError::new(Code::NotFound, text).into());
    }
    let counted = (pass == job.pass).then_some(job.counts.failed);
    let of = PassName { job: &name, group: &group, number: job.number, pass };
    let _memory = http.reserve_page(PAGES_BYTES_MAX).await;
    let mut pages = tokio::select! {
        biased;
        () = client.revoked(Action::Subscribe(PAGE_READY_TOPIC)) => {
            return Err(permissions_changed().into());
        }
        () = http.stop.cancelled() => {
            return Err(ProtocolError::new(Code::Closing, "the broker stops").into());
        }
        pages = read_failed(&http, &of, counted) => pages?,
    };
    if let Some(reasons) = params.get("reason") {
        let reasons: Vec<_> = reasons.split(',').collect();
        check_reasons(&reasons, &pages, &[])
            .map_err(|error| ProtocolError::new(Code::NotFound, format!("reason={error}")))?;
        pages.retain(|page| reasons.contains(&reason_of(page)));
    }
    let pass =
        if pages.is_empty() { job.pass } else { retry.queue(&job, &pages, &headers).await? };
    Ok(JsonResponse(json!({ "job": name.as_str(), "pass": pass, "pages": pages.len() })))
}

/// Reads the events of a pass, and returns the pages that failed. `counted`: how many there are, if
/// it is known.
async fn read_failed(
    http: &HttpState,
    of: &PassName<'_>,
    counted: Option<u64>,
) -> HttpResult<Vec<PageStatus>> {
    let topic = PAGE_READY_TOPIC.parse().expect("a constant that is a name");
    let mut cursor = TopicCursor::open(&http.shared, topic, Some(StartAt::First))?;
    let mut pages = PassPages::new(true);
    let is_complete = |pages: &PassPages| counted.is_none_or(|counted| pages.count() == counted);
    add_events(&mut cursor, of, &mut pages, None).await?;
    if !is_complete(&pages) {
        let last = add_events(&mut cursor, of, &mut pages, Some(&is_complete));
        with_timeout(LAST_EVENTS_MAX, last).await.transpose()?;
    }
    Ok(pages.finish())
}

/// Adds the events that the topic has or, with `until`, those that come until it holds.
async fn add_events(
    cursor: &mut TopicCursor,
    of: &PassName<'_>,
    pages: &mut PassPages,
    until: Option<&(dyn Fn(&PassPages) -> bool + Sync)>,
) -> HttpResult<()> {
    let filter = of.filter();
    let topic = PAGE_READY_TOPIC.parse().expect("a constant that is a name");
    loop {
        let next = poll_fn(|cx| match cursor.next(cx, READ_BYTES) {
            NextEvents::Empty { is_reading_disk } if is_reading_disk || until.is_some() => {
                Poll::Pending
            }
            next => Poll::Ready(next),
        });
        match next.await {
            NextEvents::Empty { .. } => return Ok(()),
            NextEvents::Lag(_) | NextEvents::Gap(_) => {}
            NextEvents::Lines(runs) => runs
                .iter()
                .flat_map(|run| payloads(&topic, run.first, &run.lines))
                .filter(|(_, payload)| filter.matches(payload))
                .for_each(|(_, payload)| pages.add(&payload)),
        }
        if pages.bytes() > PAGES_BYTES_MAX {
            let text = format!(
                "the failed pages take more than {PAGES_BYTES_MAX} bytes; use tidings job retry"
            );
            return Err(ProtocolError::new(Code::Limit, text).into());
        }
        if until.is_some_and(|until| until(pages)) {
            return Ok(());
        }
        tokio::task::yield_now().await;
    }
}

/// A job, and the client that fetches pages of it again.
struct Retry<'a> {
    client: &'a ConnectedClient,
    job: &'a JobName,
    group: &'a GroupName,
}

impl Retry<'_> {
    /// Queues the pages, and returns the number of their pass.
    async fn queue(
        &self,
        job: &JobStatus,
        pages: &[PageStatus],
        headers: &HeaderMap,
    ) -> HttpResult<u64> {
        let parts = || pages.chunks(COMMANDS_MAX);
        // All checks come before `open`, so a rejected request opens no pass.
        for part in parts() {
            self.client
                .check_commands(&part.iter().map(|page| self.seed(page)).collect::<Vec<_>>())?;
        }
        self.client.count_published(pages.len(), pages.iter().map(|page| page.url.len()).sum());
        // Without links, neither scope nor patterns have an effect, and seeds belong to a job
        // anyway.
        let mut settings = vec![("max-depth", "0"), ("hold", "yes")];
        settings.extend(job.render.as_deref().map(|rule| ("render", rule)));
        settings.extend(job.callback.as_deref().map(|url| ("callback", url)));
        settings.extend(traceparent_of(headers).map(|trace| (TRACEPARENT, trace)));
        let pass = self.run(JobAction::Open, settings).await?.pass;
        for part in parts() {
            let seeds: Vec<_> = part.iter().map(|page| self.seed(page)).collect();
            for reply in self.client.run_all(&seeds).await {
                reply?;
            }
        }
        // A retry of the dead letters would fetch the pages a further time.
        let letters: Vec<_> = pages.iter().filter_map(|page| self.drop_letter(page)).collect();
        let identity = self.client.session().identity().clone();
        // A token for jobs alone does not allow it.
        if letters.first().is_some_and(|letter| identity.check_command(letter).is_ok()) {
            for part in letters.chunks(COMMANDS_MAX) {
                self.client.run_all(part).await;
            }
        }
        self.run(JobAction::Close, Vec::new()).await?;
        Ok(pass)
    }

    async fn run(
        &self,
        action: JobAction<'static>,
        settings: Vec<(&str, &str)>,
    ) -> HttpResult<JobStatus> {
        match self.client.run(&self.command(action, settings)).await?.ok {
            Status::Job(job) => Ok(*job),
            other => unreachable!("{other:?} is no answer about a job"),
        }
    }

    fn seed<'a>(&'a self, page: &'a PageStatus) -> Command<'a> {
        let mut settings = vec![("url", page.url.as_str())];
        settings.extend(page.item.as_deref().map(|item| ("item", item)));
        settings.extend(page.source.as_deref().map(|source| ("source", source)));
        self.command(JobAction::Add, settings)
    }

    fn command<'a>(
        &'a self,
        action: JobAction<'a>,
        mut settings: Vec<(&'a str, &'a str)>,
    ) -> Command<'a> {
        settings.push(("group", self.group.as_str()));
        Command::Job(JobCommand::new(action, self.job.as_str(), settings))
    }

    /// Drops the dead letter of a page, if it was given up.
    fn drop_letter<'a>(&'a self, page: &'a PageStatus) -> Option<Command<'a>> {
        page.gave_up.as_ref()?;
        // `page=<group>.<since>.<entry>`
        let (_, entry) = page.page.rsplit_once('.')?;
        let settings = vec![("entry", entry), ("job", self.job.as_str())];
        Some(Command::Group(GroupCommand::new(GroupAction::Drop, self.group.as_str(), settings)))
    }
}
