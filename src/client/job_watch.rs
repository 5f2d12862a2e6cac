//! Watches a job of a broker to its end; may open, seed and close it before.

#![expect(clippy::disallowed_methods, reason = "a task watches the job while another one prints")]

use std::collections::VecDeque;
use std::time::Duration;

use tidings_client::{Client, ClientError, Connection, Connector, Deliveries, Delivery};
use tidings_protocol::status::{GroupStatus, JobEnd, JobState, JobStatus, KeyStatus};
use tidings_protocol::{
    AttributeFilter, Command, DEFAULT_GROUP, DEFAULT_TOPIC, GroupAction, GroupCommand, GroupName,
    JOB_DONE_TOPIC, JobAction, JobCommand, JobName, TopicName, format_ms,
};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::client::job::{JobProgress, JobRequest, end_of};
use crate::client::{broker_message, connection, manage};
use crate::flags::address::BrokerAddress;
use crate::flags::milliseconds;
use crate::terminal::failure::Failure;

/// The interval of requests for the counts, while progress is shown.
const POLL: Duration = Duration::from_millis(250);

/// The interval of requests for the hosts that a job waits for, and the divisor that limits their
/// share of the time: the broker reads all its hosts for the answer, which may be a million.
const HOSTS_INTERVAL: Duration = Duration::from_secs(5);
const HOSTS_TIME_DIVISOR: u32 = 100;

/// The limit of these hosts in the progress of a crawl.
const WAITING_HOSTS_SHOWN: usize = 3;

/// The name of the connection of `tidings job`, as the broker shows it.
const NAME: &str = "tidings-job";

/// The limit of seeds without a confirmation.
const UNCONFIRMED_MAX: usize = 256;

type JobUpdates = mpsc::Sender<Result<JobUpdate, Failure>>;

/// A watched job. Dropping it ends the watching, not the job.
#[derive(Debug)]
pub(crate) struct JobWatch {
    updates: mpsc::Receiver<Result<JobUpdate, Failure>>,
    follower: JoinHandle<()>,
}

/// An update about a job.
#[derive(Debug)]
pub(crate) enum JobUpdate {
    /// The job is still running.
    Progress(Box<JobProgress>),
    /// The job has ended; this is the last update.
    Done(Box<JobEnd>),
}

impl JobWatch {
    /// Opens the job of `request` at the broker and watches it. With `progress` there are updates
    /// before the end.
    pub(crate) fn open(broker: BrokerAddress, request: JobRequest, progress: bool) -> Self {
        Self::spawn(|steps| async move {
            follow_job(&broker, &request, progress.then_some(&steps)).await
        })
    }

    /// Watches the pass of an existing job. With `progress` there are updates before the end, at
    /// most one in this time.
    pub(crate) fn wait(
        broker: BrokerAddress,
        job: JobName,
        group: GroupName,
        progress: Option<Duration>,
    ) -> Self {
        Self::spawn(|steps| async move {
            wait(&broker, &job, &group, progress.map(|every| (every, steps))).await
        })
    }

    fn spawn<F>(follow: impl FnOnce(JobUpdates) -> F) -> Self
    where
        F: Future<Output = Result<JobEnd, Failure>> + Send + 'static,
    {
        let (sender, updates) = mpsc::channel(1);
        let following = follow(sender.clone());
        let follower = tokio::spawn(async move {
            let result = following.await;
            // The receiver may be gone.
            let _ = sender.send(result.map(|end| JobUpdate::Done(Box::new(end)))).await;
        });
        Self { updates, follower }
    }

    /// The next update. Cancel-safe. It must not be called after the last update.
    pub(crate) async fn next(&mut self) -> Result<JobUpdate, Failure> {
        self.updates.recv().await.expect("the follower's last step is the end or a failure")
    }
}

impl Drop for JobWatch {
    fn drop(&mut self) {
        self.follower.abort();
    }
}

/// Watches the job to its end, over as many connections as it takes: the loss of one does not end
/// the job.
async fn follow_job(
    broker: &BrokerAddress,
    request: &JobRequest,
    progress: Option<&JobUpdates>,
) -> Result<JobEnd, Failure> {
    let name = request.name();
    let (mut connector, mut connection) = connection::open(broker, "tidings-crawl").await?;
    let mut pass = None;
    loop {
        match follow_on_connection(connection, &name, request, progress, &mut pass).await {
            Ok(end) => return Ok(end),
            Err(error) => connection = reconnect(&mut connector, broker, &name, error).await?,
        }
    }
}

/// A new connection after this error, unless it is final.
async fn reconnect(
    connector: &mut Connector,
    broker: &BrokerAddress,
    job: &JobName,
    mut error: ClientError,
) -> Result<Connection, Failure> {
    if !connector.is_final(&error) {
        let error = broker_message::client_error(&error);
        tracing::warn!("job {job} at {broker}: {error}; trying again");
    }
    while !connector.is_final(&error) {
        match connector.connect().await {
            Ok(connection) => return Ok(connection),
            Err(failed) => error = failed,
        }
    }
    Err(manage::failure(broker, error))
}

/// Watches the job while the connection lasts. `pass` is the known state of the running pass.
async fn follow_on_connection(
    Connection { client, mut deliveries, .. }: Connection,
    name: &JobName,
    request: &JobRequest,
    progress: Option<&JobUpdates>,
    pass: &mut Option<JobStatus>,
) -> Result<JobEnd, ClientError> {
    // Subscribe before the job exists, so that its end cannot be missed.
    let topic = JOB_DONE_TOPIC.parse().expect("a constant that is a name");
    let (from, cursor, filter) = (None, None, AttributeFilter::default());
    let subscribe = Command::Sub { topic, from, cursor, takeover: false, filter };
    client.request(&subscribe).await?;
    let running = match pass {
        Some(running) => {
            // It may have ended between two connections.
            let now = show(&client, name).await?;
            let is_same = now.number == running.number && now.pass == running.pass;
            if now.state == JobState::Done || !is_same {
                return Ok(end_of(now));
            }
            running
        }
        None => pass.insert(open_and_seed(&client, name, request).await?),
    };
    let polls = async {
        match progress {
            Some(steps) => poll(&client, name, steps).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        end = until_done(&mut deliveries, name, running) => end,
        error = polls => Err(error),
    }
}

/// Waits for the end of an existing job, over as many connections as it takes.
async fn wait(
    broker: &BrokerAddress,
    job: &JobName,
    group: &GroupName,
    progress: Option<(Duration, JobUpdates)>,
) -> Result<JobEnd, Failure> {
    let (mut connector, mut connection) = connection::open(broker, NAME).await?;
    loop {
        match wait_on_connection(connection, job, group, progress.as_ref()).await {
            Ok(end) => return Ok(end),
            Err(error) => connection = reconnect(&mut connector, broker, job, error).await?,
        }
    }
}

/// The same while the connection lasts.
async fn wait_on_connection(
    Connection { client, mut deliveries, .. }: Connection,
    job: &JobName,
    group: &GroupName,
    progress: Option<&(Duration, JobUpdates)>,
) -> Result<JobEnd, ClientError> {
    let mut settings = vec![("group", group.as_str())];
    let Some((every, steps)) = progress else {
        let wait = Command::Job(JobCommand::new(JobAction::Wait, job.as_str(), settings));
        return client.request(&wait).await.map(|answer| JobEnd::parse(&answer.ok));
    };
    let every = format_ms(milliseconds(*every));
    settings.push(("every", &every));
    let watch = Command::Job(JobCommand::new(JobAction::Watch, job.as_str(), settings));
    let mut end = client.watch(&watch).await?;
    loop {
        tokio::select! {
            // An update that arrived before the end is shown before it.
            biased;
            Some(delivery) = deliveries.next() => if let Delivery::More(line) = delivery {
                // The receiver may be gone.
                let progress = JobProgress { job: JobStatus::parse(&line), waiting: Vec::new() };
                let _ = steps.send(Ok(JobUpdate::Progress(Box::new(progress)))).await;
            },
            end = &mut end => return end.map(|answer| JobEnd::parse(&answer.ok)),
        }
    }
}

/// The crawlers that are connected to the broker: all, and those with a browser.
pub(crate) async fn crawlers(broker: &BrokerAddress) -> Result<(u64, u64), Failure> {
    let (client, _deliveries) = connection::connect(broker, "tidings-crawl").await?;
    let show = GroupCommand::new(GroupAction::Show, DEFAULT_GROUP, Vec::new());
    // A missing group has no members.
    let answer = client.request(&Command::Group(show)).await.ok();
    Ok(answer.map_or((0, 0), |answer| {
        let group = GroupStatus::parse(&answer.ok);
        (group.members, group.render_members.unwrap_or(0))
    }))
}

/// Opens, seeds and closes the job, unless it runs already. Returns the state of the running pass.
async fn open_and_seed(
    client: &Client,
    name: &JobName,
    request: &JobRequest,
) -> Result<JobStatus, ClientError> {
    let settings = request.settings();
    let mut settings: Vec<_> = settings.iter().map(|(key, value)| (*key, value.as_str())).collect();
    // The scope is known only with all seeds: a page with a link to the host of a later seed would
    // be judged too early. A single seed needs no such wait.
    if request.seeds.len() > 1 {
        settings.push(("hold", "yes"));
    }
    let open = JobCommand::new(JobAction::Open, name.as_str(), settings);
    let pass = JobStatus::parse(&client.request(&Command::Job(open)).await?.ok);
    // A paused job may still be open; a seed that it already has changes nothing.
    if matches!(pass.state, JobState::Open | JobState::Paused) {
        let topic: TopicName = DEFAULT_TOPIC.parse().expect("a constant that is a name");
        let mut unconfirmed = VecDeque::new();
        for seed in &request.seeds {
            if unconfirmed.len() == UNCONFIRMED_MAX
                && let Some(oldest) = unconfirmed.pop_front()
            {
                oldest.await?;
            }
            let event = format!("{} job={name}", seed.as_str());
            unconfirmed.push_back(client.publish(&topic, &event).await?);
        }
        for seed in unconfirmed {
            seed.await?;
        }
        let close = JobCommand::new(JobAction::Close, name.as_str(), Vec::new());
        client.request(&Command::Job(close)).await?;
    }
    Ok(pass)
}

/// Waits for the event that announces the end of this pass.
async fn until_done(
    deliveries: &mut Deliveries,
    name: &JobName,
    pass: &JobStatus,
) -> Result<JobEnd, ClientError> {
    while let Some(delivery) = deliveries.next().await {
        if let Delivery::Msg { payload, .. } = delivery {
            let end = JobEnd::parse(&payload);
            if end.job == name.as_str() && end.number == pass.number && end.pass == pass.pass {
                return Ok(end);
            }
        }
    }
    Err(deliveries.reason())
}

/// Requests the counts of the job repeatedly, until a request fails.
async fn poll(client: &Client, name: &JobName, steps: &JobUpdates) -> ClientError {
    let mut ticks = interval(POLL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // At first no host has waited long.
    let (mut hosts, mut hosts_at) = (Vec::new(), Instant::now() + HOSTS_INTERVAL);
    loop {
        ticks.tick().await;
        let now = Instant::now();
        if now >= hosts_at {
            hosts = match waiting_hosts(client, name).await {
                Ok(hosts) => hosts,
                // A job that has just ended has no such list.
                Err(ClientError::Refused(_)) => Vec::new(),
                Err(error) => return error,
            };
            hosts_at = now + HOSTS_INTERVAL.max(now.elapsed() * HOSTS_TIME_DIVISOR);
        }
        match show(client, name).await {
            // A busy printer gets the next update.
            Ok(job) => {
                let progress = JobProgress { job, waiting: hosts.clone() };
                _ = steps.try_send(Ok(JobUpdate::Progress(Box::new(progress))));
            }
            Err(error) => return error,
        }
    }
}

/// The hosts that a job waits for, as many as are shown.
async fn waiting_hosts(client: &Client, name: &JobName) -> Result<Vec<KeyStatus>, ClientError> {
    let limit = WAITING_HOSTS_SHOWN.to_string();
    let settings = vec![("job", name.as_str()), ("limit", &*limit)];
    let keys = Command::Group(GroupCommand::new(GroupAction::Keys, DEFAULT_GROUP, settings));
    let answer = client.request(&keys).await?;
    Ok(answer.more.iter().map(|line| KeyStatus::parse(line)).collect())
}

/// `JOB show`.
async fn show(client: &Client, name: &JobName) -> Result<JobStatus, ClientError> {
    let show = JobCommand::new(JobAction::Show, name.as_str(), Vec::new());
    Ok(JobStatus::parse(&client.request(&Command::Job(show)).await?.ok))
}
