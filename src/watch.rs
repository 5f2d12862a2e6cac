//! Follows a job at a broker to its end; before that perhaps opens, seeds and closes it.

#![expect(clippy::disallowed_methods, reason = "a task follows the job while another one prints")]

use std::{collections::VecDeque, time::Duration};

use tidings_protocol::{
    Command, DEFAULT_GROUP, DEFAULT_TOPIC, GroupName, JOB_DONE_TOPIC, JobName, Manage, TopicName,
    client::{Client, ClientError, Deliveries, Delivery},
    field_number, format_ms,
};
use tokio::{
    sync::mpsc,
    task::JoinHandle,
    time::{Instant, MissedTickBehavior, interval, sleep},
};

use crate::{
    address::BrokerAddress,
    failure::Failure,
    flags::milliseconds,
    job::{Counts, JobRequest},
    link, manage,
    screen::WAITING_SHOWN,
    waiting::Waiting,
};

/// How often the broker is asked how a job of one's own is doing, where somebody watches it.
const POLL: Duration = Duration::from_millis(250);

/// How often it is asked for the hosts that a job waits for, and for which part of the time at most: it looks at all
/// hosts meanwhile, which may be a million.
const HOSTS_EVERY: Duration = Duration::from_secs(5);
const HOSTS_PART: u32 = 100;

/// The label of who waits, which the broker shows.
const WAIT_NAME: &str = "tidings-job";

/// Seeds whose confirmations are still on the way.
const UNCONFIRMED_MAX: usize = 256;

/// Pauses between tries to reach a broker that was there before.
const RECONNECT_MIN: Duration = Duration::from_millis(100);
const RECONNECT_MAX: Duration = Duration::from_secs(5);

type Steps = mpsc::Sender<Result<Step, Failure>>;

/// A job that is being followed. Dropping it stops following, not the job.
#[derive(Debug)]
pub(crate) struct Watch {
    steps: mpsc::Receiver<Result<Step, Failure>>,
    follower: JoinHandle<()>,
}

/// What is new about a job.
#[derive(Debug)]
pub(crate) enum Step {
    /// Still running.
    Progress(Counts),
    /// It has ended; nothing comes after this.
    Done(Counts),
}

impl Watch {
    /// Opens the job of `request` at the broker. With `progress` there are steps before the end.
    pub(crate) fn begin(broker: BrokerAddress, request: JobRequest, progress: bool) -> Self {
        Self::spawn(
            |steps| async move { follow(&broker, &request, progress.then_some(&steps)).await },
        )
    }

    /// Waits for the end of a job's pass. With `progress` there are steps before the end, no two of them
    /// within such a time.
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

    fn spawn<F>(follow: impl FnOnce(Steps) -> F) -> Self
    where
        F: Future<Output = Result<Counts, Failure>> + Send + 'static,
    {
        let (sender, steps) = mpsc::channel(1);
        let following = follow(sender.clone());
        let follower = tokio::spawn(async move {
            let result = following.await;
            // Whoever does not wait for the end any more does not want it.
            let _ = sender.send(result.map(Step::Done)).await;
        });
        Self { steps, follower }
    }

    /// The next step. Cancel-safe. Not to be called after the last one.
    pub(crate) async fn next(&mut self) -> Result<Step, Failure> {
        self.steps.recv().await.expect("the follower's last step is the end or a failure")
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.follower.abort();
    }
}

/// Follows the job to its end, over as many connections as it takes: the job does not end with one.
async fn follow(
    broker: &BrokerAddress,
    request: &JobRequest,
    progress: Option<&Steps>,
) -> Result<Counts, Failure> {
    let name = request.name();
    let mut connected = link::connect(broker, "tidings-crawl").await?;
    let (mut pass, mut pause) = (None, RECONNECT_MIN);
    loop {
        let error = match follow_once(connected, &name, request, progress, &mut pass).await {
            Ok(end) => return Ok(end),
            Err(error) if is_final(&error) => {
                return Err(Failure::failed(format!("job {name} at {broker}: {error}")));
            }
            Err(error) => error,
        };
        tracing::warn!("job {name} at {broker}: {error}; trying again");
        connected = reconnect(broker, "tidings-crawl", &mut pause).await;
    }
}

/// Whether the same would be answered on another connection as well.
fn is_final(error: &ClientError) -> bool {
    matches!(error, ClientError::Refused(refusal) if !refusal.code.is_transient())
}

/// Another connection, as soon as there can be one.
async fn reconnect(
    broker: &BrokerAddress,
    name: &str,
    pause: &mut Duration,
) -> (Client, Deliveries) {
    loop {
        sleep(*pause).await;
        *pause = (*pause * 2).min(RECONNECT_MAX);
        if let Ok(connected) = link::try_connect(broker, name).await {
            return connected;
        }
    }
}

/// Follows it as long as the connection lasts. `pass` is what is known of the pass that runs.
async fn follow_once(
    (client, mut deliveries): (Client, Deliveries),
    name: &JobName,
    request: &JobRequest,
    progress: Option<&Steps>,
    pass: &mut Option<Counts>,
) -> Result<Counts, ClientError> {
    // Before the job exists, so that its end cannot be missed.
    let topic = JOB_DONE_TOPIC.parse().expect("a constant that is a name");
    let subscribe = Command::Sub { topic, from: None, cursor: None, takeover: false };
    client.request(&subscribe).await?;
    let running = match pass {
        Some(running) => {
            // It may have ended while nobody watched.
            let now = show(&client, name).await?;
            let is_same = now.number == running.number && now.pass == running.pass;
            if now.state == "done" || !is_same {
                return Ok(now);
            }
            running
        }
        None => pass.insert(begin(&client, name, request).await?),
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

/// Waits for the end of a job that somebody else began, over as many connections as it takes.
async fn wait(
    broker: &BrokerAddress,
    job: &JobName,
    group: &GroupName,
    progress: Option<(Duration, Steps)>,
) -> Result<Counts, Failure> {
    let (mut connected, mut pause) = (link::connect(broker, WAIT_NAME).await?, RECONNECT_MIN);
    loop {
        let error = match wait_once(connected, job, group, progress.as_ref()).await {
            Ok(end) => return Ok(end),
            Err(error) if is_final(&error) => return Err(manage::failure(broker, error)),
            Err(error) => error,
        };
        tracing::warn!("job {job} at {broker}: {error}; trying again");
        connected = reconnect(broker, WAIT_NAME, &mut pause).await;
    }
}

/// The same as long as the connection lasts.
async fn wait_once(
    (client, mut deliveries): (Client, Deliveries),
    job: &JobName,
    group: &GroupName,
    progress: Option<&(Duration, Steps)>,
) -> Result<Counts, ClientError> {
    let mut settings = vec![("group", group.as_str())];
    let Some((every, steps)) = progress else {
        let wait = Command::Job(manage::manage("wait", Some(job.as_str()), settings));
        return client.request(&wait).await.map(|answer| Counts::parse(&answer.ok));
    };
    let every = format_ms(milliseconds(*every));
    settings.push(("every", &every));
    let watch = Command::Job(manage::manage("watch", Some(job.as_str()), settings));
    let mut end = client.watch(&watch).await?;
    loop {
        tokio::select! {
            // What came before the end is shown before it.
            biased;
            Some(delivery) = deliveries.next() => if let Delivery::More(line) = delivery {
                // Whoever does not look any more waits for nothing.
                let _ = steps.send(Ok(Step::Progress(Counts::parse(&line)))).await;
            },
            end = &mut end => return end.map(|answer| Counts::parse(&answer.ok)),
        }
    }
}

/// How many crawlers are connected to the broker, as far as it says.
pub(crate) async fn crawlers(broker: &BrokerAddress) -> Result<u64, Failure> {
    let (client, _deliveries) = link::connect(broker, "tidings-crawl").await?;
    let show = Manage { action: "show", name: Some(DEFAULT_GROUP), settings: Vec::new() };
    // A group that does not exist yet has no members either.
    let answer = client.request(&Command::Group(show)).await.ok();
    Ok(answer.and_then(|answer| field_number(&answer.ok, "members")).unwrap_or(0))
}

/// Opens, seeds and closes the job; one that runs already is left as it is. Returns what is known
/// of the pass that runs now.
async fn begin(
    client: &Client,
    name: &JobName,
    request: &JobRequest,
) -> Result<Counts, ClientError> {
    let settings = request.settings();
    let mut settings: Vec<_> = settings.iter().map(|(key, value)| (*key, value.as_str())).collect();
    // What belongs to it is known only when all seeds are there: a page that links to the host of
    // one that comes later would be read too early. Where there is one seed, none comes later.
    if request.seeds.len() > 1 {
        settings.push(("hold", "yes"));
    }
    let open = Manage { action: "open", name: Some(name.as_str()), settings };
    let pass = Counts::parse(&client.request(&Command::Job(open)).await?.ok);
    // One that is paused may be open, too; a seed that it has already changes nothing.
    if matches!(pass.state.as_str(), "open" | "paused") {
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
        let close = Manage { action: "close", name: Some(name.as_str()), settings: Vec::new() };
        client.request(&Command::Job(close)).await?;
    }
    Ok(pass)
}

/// Waits for the event that announces the end of this pass.
async fn until_done(
    deliveries: &mut Deliveries,
    name: &JobName,
    pass: &Counts,
) -> Result<Counts, ClientError> {
    while let Some(delivery) = deliveries.next().await {
        if let Delivery::Msg { payload, .. } = delivery {
            let end = Counts::parse(&payload);
            if end.name == name.as_str() && end.number == pass.number && end.pass == pass.pass {
                return Ok(end);
            }
        }
    }
    Err(deliveries.reason())
}

/// Asks how the job is doing, again and again, until that fails.
async fn poll(client: &Client, name: &JobName, steps: &Steps) -> ClientError {
    let mut ticks = interval(POLL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // At first nothing waits for long.
    let (mut hosts, mut hosts_at) = (Vec::new(), Instant::now() + HOSTS_EVERY);
    loop {
        ticks.tick().await;
        let now = Instant::now();
        if now >= hosts_at {
            hosts = match waiting(client, name).await {
                Ok(hosts) => hosts,
                // Of an older broker, or of a job that is just over, nobody needs to know.
                Err(ClientError::Refused(_)) => Vec::new(),
                Err(error) => return error,
            };
            hosts_at = now + HOSTS_EVERY.max(now.elapsed() * HOSTS_PART);
        }
        match show(client, name).await {
            // A printer that is busy gets the next one.
            Ok(counts) => {
                let counts = Counts { waiting: hosts.clone(), ..counts };
                _ = steps.try_send(Ok(Step::Progress(counts)));
            }
            Err(error) => return error,
        }
    }
}

/// The hosts that a job waits for, as far as they are shown.
async fn waiting(client: &Client, name: &JobName) -> Result<Vec<Waiting>, ClientError> {
    let limit = WAITING_SHOWN.to_string();
    let settings = vec![("job", name.as_str()), ("limit", &*limit)];
    let keys = Command::Group(manage::manage("keys", Some(DEFAULT_GROUP), settings));
    let answer = client.request(&keys).await?;
    Ok(answer.more.iter().map(|line| Waiting::parse(line)).collect())
}

/// `JOB show`.
async fn show(client: &Client, name: &JobName) -> Result<Counts, ClientError> {
    let show = Manage { action: "show", name: Some(name.as_str()), settings: Vec::new() };
    Ok(Counts::parse(&client.request(&Command::Job(show)).await?.ok))
}
