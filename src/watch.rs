//! Follows a job at a broker to its end; before that perhaps opens, seeds and closes it.

#![expect(clippy::disallowed_methods, reason = "a task follows the job while another one prints")]

use std::{collections::VecDeque, time::Duration};

use tidings_protocol::{
    Command, DEFAULT_GROUP, DEFAULT_TOPIC, GroupName, JOB_DONE_TOPIC, JobName, Manage, TopicName,
    client::{Client, ClientError, Deliveries, Delivery},
    field_number,
};
use tokio::{
    sync::mpsc,
    task::JoinHandle,
    time::{MissedTickBehavior, interval},
};

use crate::{
    address::BrokerAddress,
    failure::Failure,
    job::{Counts, JobRequest},
    link, manage,
};

/// How often the broker is asked how the job is doing, where somebody watches it: one's own, which
/// may be done soon, and one that somebody else began.
const POLL: Duration = Duration::from_millis(250);
const WAIT_POLL: Duration = Duration::from_secs(1);

/// Seeds whose confirmations are still on the way.
const UNCONFIRMED_MAX: usize = 256;

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
    /// It has ended, and these are the words of its announcement; nothing comes after this.
    Done(String),
}

impl Watch {
    /// Opens the job of `request` at the broker. With `progress` there are steps before the end.
    pub(crate) fn begin(broker: BrokerAddress, request: JobRequest, progress: bool) -> Self {
        Self::spawn(
            |steps| async move { follow(&broker, &request, progress.then_some(&steps)).await },
        )
    }

    /// Waits for the end of a job's pass. With `progress` there are steps before the end.
    pub(crate) fn wait(
        broker: BrokerAddress,
        job: JobName,
        group: GroupName,
        progress: bool,
    ) -> Self {
        Self::spawn(
            |steps| async move { wait(&broker, &job, &group, progress.then_some(&steps)).await },
        )
    }

    fn spawn<F>(follow: impl FnOnce(Steps) -> F) -> Self
    where
        F: Future<Output = Result<String, Failure>> + Send + 'static,
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

async fn follow(
    broker: &BrokerAddress,
    request: &JobRequest,
    progress: Option<&Steps>,
) -> Result<String, Failure> {
    let name = request.name();
    let (client, mut deliveries) = link::connect(broker, "tidings-crawl").await?;
    let told = |error: ClientError| Failure::failed(format!("job {name} at {broker}: {error}"));
    // Before the job exists, so that its end cannot be missed.
    let topic = JOB_DONE_TOPIC.parse().expect("a constant that is a name");
    let subscribe = Command::Sub { topic, from: None, cursor: None, takeover: false };
    client.request(&subscribe).await.map_err(told)?;
    let pass = begin(&client, &name, request).await.map_err(told)?;
    let polls = async {
        match progress {
            Some(steps) => poll(&client, &name, None, POLL, steps).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        end = until_done(&mut deliveries, &name, &pass) => end.map_err(told),
        error = polls => Err(told(error)),
    }
}

/// The answer to `JOB wait` comes at the end, and others on that connection behind it: so there is
/// another one for the progress.
async fn wait(
    broker: &BrokerAddress,
    job: &JobName,
    group: &GroupName,
    progress: Option<&Steps>,
) -> Result<String, Failure> {
    let (client, _deliveries) = link::connect(broker, "tidings-job").await?;
    let settings = vec![("group", group.as_str())];
    let wait = Command::Job(manage::manage("wait", Some(job.as_str()), settings));
    let polls = async {
        let Some(steps) = progress else { return std::future::pending().await };
        let (client, _deliveries) = link::connect(broker, "tidings-job").await?;
        Err(manage::failure(broker, poll(&client, job, Some(group), WAIT_POLL, steps).await))
    };
    tokio::select! {
        // In this order: what became of the job says more than that it cannot be watched.
        biased;
        end = client.request(&wait) => match end {
            Ok(answer) => Ok(answer.ok),
            Err(error) => Err(manage::failure(broker, error)),
        },
        failed = polls => failed,
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
    let settings = settings.iter().map(|(key, value)| (*key, value.as_str())).collect();
    let open = Manage { action: "open", name: Some(name.as_str()), settings };
    let pass = Counts::parse(&client.request(&Command::Job(open)).await?.ok);
    if pass.state == "open" {
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

/// Waits for the event that announces the end of this pass, and returns it.
async fn until_done(
    deliveries: &mut Deliveries,
    name: &JobName,
    pass: &Counts,
) -> Result<String, ClientError> {
    while let Some(delivery) = deliveries.next().await {
        if let Delivery::Msg { payload, .. } = delivery {
            let end = Counts::parse(&payload);
            if end.name == name.as_str() && end.number == pass.number && end.pass == pass.pass {
                return Ok(payload);
            }
        }
    }
    Err(deliveries.reason())
}

/// Asks how the job is doing, again and again, until that fails.
async fn poll(
    client: &Client,
    name: &JobName,
    group: Option<&GroupName>,
    every: Duration,
    steps: &Steps,
) -> ClientError {
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let settings = group.iter().map(|group| ("group", group.as_str())).collect();
        let show = Manage { action: "show", name: Some(name.as_str()), settings };
        match client.request(&Command::Job(show)).await {
            Ok(answer) => {
                // A printer that is busy gets the next one.
                let _ = steps.try_send(Ok(Step::Progress(Counts::parse(&answer.ok))));
            }
            Err(error) => return error,
        }
    }
}
