//! A broker that follows the shared log, and leads when it is its turn.

#![expect(clippy::disallowed_methods, reason = "reads clocks, and waits for the engine")]

use std::mem;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use hyper::body::Bytes;
use jiff::Timestamp;
use parking_lot::Mutex;
use tidings_broker::{BrokerConfig, DataDir, Moment, Sockets, empty_catalog};
use tidings_cluster::{
    Candidacy, CommunityId, HEARTBEAT_MS, Heartbeat, Kind, Name, Replica, Seat, Slot, Stamp,
    Verdict,
};
use tidings_jetstream::{Answer, Bus, JetStream, ReadError, Said};
use tidings_log::FileSystem;
use tidings_protocol::MemberId;
use tokio::net::TcpListener as TokioListener;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinSet, block_in_place};
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;

use super::super::BrokerArgs;
use super::relay::{self, Entry, Key, LeaderAddress, Service as Relayed};
use super::status::{Checkpoints, Status};
use super::term;
use crate::process::service::{self, Service, StartContext};
use crate::process::signals::stop_on_signal;
use crate::process::stack;
use crate::services::nats::{NatsFlags, NatsServers};
use crate::terminal::failure::Failure;
use crate::terminal::output::Console;

/// Messages that were read and wait until they are applied.
const READ_AHEAD: usize = 64;

const AGAIN: Duration = Duration::from_millis(100);

/// How often a standby looks whether it is its turn.
const TURN: Duration = Duration::from_millis(50);

/// How long the end of the log may be behind what was read. An engine that has lost a server names an
/// old end for up to 20 s.
const OLD_END_MAX: Duration = Duration::from_secs(30);

/// Flags of a broker that is one of several.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Several machines")]
pub(crate) struct ClusterFlags {
    #[command(flatten)]
    pub(crate) servers: NatsFlags,

    /// The community to which this broker belongs
    #[arg(long, value_name = "NAME", requires = "cluster")]
    pub(crate) community: Option<Name>,

    /// The name of this broker, which no other one of the community has
    #[arg(long, value_name = "NAME", requires = "cluster")]
    node: Option<Name>,

    /// Take the clients of other brokers at this address, at which only they can reach it
    #[arg(long, value_name = "IP:PORT", requires = "cluster")]
    relay_listen: Option<SocketAddr>,
}

impl ClusterFlags {
    /// Whether the broker is one of several.
    pub(crate) fn is_set(&self) -> bool {
        !self.servers.cluster.is_empty()
    }

    /// What is wrong with the flags, if they are set.
    pub(crate) fn problem(&self) -> Option<Failure> {
        self.names().err().filter(|_| self.is_set())
    }

    fn names(&self) -> Result<(&Name, &Name, SocketAddr), Failure> {
        let missing = |flag: &str| Failure::Usage(format!("--cluster needs {flag}"));
        let community = self.community.as_ref().ok_or_else(|| missing("--community NAME"))?;
        let node = self.node.as_ref().ok_or_else(|| missing("--node NAME"))?;
        let relay = self.relay_listen.ok_or_else(|| missing("--relay-listen IP:PORT"))?;
        if relay.ip().is_unspecified() {
            let text = format!(
                "--relay-listen {relay}: write the address at which the other brokers reach this one"
            );
            return Err(Failure::Usage(text));
        }
        Ok((community, node, relay))
    }
}

/// What a node has for as long as it runs.
pub(super) struct Node<'a> {
    pub(super) args: &'a BrokerArgs,
    pub(super) service: Service,
    pub(super) shown: Vec<tidings_broker::Setting>,
    pub(super) stream: JetStream,
    pub(super) community: CommunityId,
    pub(super) name: Name,
    pub(super) status: Arc<Status>,
    pub(super) bus: Bus,
    pub(super) stop: CancellationToken,
    pub(super) sockets: Listening,
    pub(super) entry: Arc<Mutex<Option<Entry>>>,
    pub(super) leader: watch::Sender<Option<SocketAddr>>,
    data: DataDir,
    seat: Seat,
    began: Instant,
}

/// Sockets that outlive the brokers of this process.
pub(super) struct Listening {
    pub(super) line: TcpListener,
    pub(super) http: Option<TcpListener>,
}

impl Listening {
    fn open(config: &BrokerConfig, sockets: Sockets) -> Result<Self, Failure> {
        let at = |socket: Option<TcpListener>, address, flag| {
            socket.map_or_else(|| stack::bind(address, flag), Ok)
        };
        let line = at(sockets.line, config.listen, "--listen")?;
        let http = config.http.as_ref();
        let http = http.map(|http| at(sockets.http, http.listen, "--http")).transpose()?;
        Ok(Self { line, http })
    }

    pub(super) fn clones(&self) -> Result<Sockets, Failure> {
        let (line, http) = (self.line.try_clone(), self.http.as_ref().map(TcpListener::try_clone));
        let line = Some(line.context("cannot share a socket")?);
        let http = http.transpose().context("cannot share a socket")?;
        Ok(Sockets { line, http, ..Sockets::default() })
    }
}

/// How a broker comes to lead.
pub(super) struct Won {
    pub(super) candidacy: Candidacy,
    /// The earliest moment that it may be now.
    pub(super) moment: Moment,
}

/// Runs until SIGINT or SIGTERM.
pub(crate) async fn run(args: &BrokerArgs, mut started: StartContext) -> Result<(), Failure> {
    let cluster = &args.cluster;
    let (community, name, relay) = cluster.names()?;
    args.server.check_no_state()?;
    let stop = stop_on_signal()?;
    let shown = mem::take(&mut started.shown);
    let (service, sockets) = Service::new(started)?;
    let config = args.broker_config()?;
    args.server.check_exposure(&config, &sockets, &args.data)?;
    let sockets = Listening::open(&config, sockets)?;
    let relay = stack::bind(relay, "--relay-listen")?;
    let data = DataDir::open(&args.data.data).map_err(|it| stack::start_failure(it, "--data"))?;
    check_copy(data.path())?;
    let servers = cluster.servers.connect(community).await?;
    let id = servers.community().await?;
    servers.check_sync(false).await?;
    let NatsServers { stream, .. } = servers;

    let mut console = Console::new();
    let address = sockets.line.local_addr().context("a socket has no address")?;
    let _ = console.line(&format!("listening on {address}"));
    if let Some(http) = &sockets.http {
        let http = http.local_addr().context("a socket has no address")?;
        let _ = console.line(&args.server.http_line(http));
    }
    let status = {
        let relay = relay.local_addr().context("a socket has no address")?;
        Arc::new(Status::new(name.clone(), random_number(), relay))
    };
    let (key, entry) = (Key::of(id), Arc::<Mutex<Option<Entry>>>::default());
    let mut tasks = JoinSet::new();
    tasks.spawn(relay::take_in(tokio_listener(relay)?, key, Arc::clone(&entry)));
    tasks.spawn({
        let (status, stream) = (Arc::clone(&status), stream.clone());
        async move { status.say(&stream).await }
    });
    let bus = stream.hear().await.context("cannot hear other brokers")?;
    let began = Instant::now();
    let node = Node {
        args,
        service,
        shown,
        stream,
        community: id,
        name: name.clone(),
        status,
        bus,
        stop,
        sockets,
        entry,
        leader: watch::Sender::new(None),
        data,
        seat: Seat::new(name.as_str(), 0),
        began,
    };
    service::ready();
    let result = node.follow_and_lead(key).await;
    service::stopping();
    result
}

fn tokio_listener(socket: TcpListener) -> Result<TokioListener, Failure> {
    let listener = socket.set_nonblocking(true).and_then(|()| TokioListener::from_std(socket));
    Ok(listener.context("cannot use a socket")?)
}

/// Refuses the data of a broker that is no copy.
fn check_copy(data: &Path) -> Result<(), Failure> {
    let is_copy = data.join(stack::COPY_FILE).exists();
    let has_data = ["topics", "groups"].iter().any(|name| data.join(name).exists());
    if is_copy || !has_data {
        return Ok(());
    }
    let data = data.display();
    Err(Failure::failed(format!(
        "{data} holds the data of a broker of its own; choose an empty directory, or one that was \
         copied from a broker of the community, with --data"
    )))
}

impl Node<'_> {
    async fn follow_and_lead(mut self, key: Key) -> Result<(), Failure> {
        loop {
            let replica = self.open_replica()?;
            let standby = self.standby(key)?;
            let won = self.follow(Arc::clone(&replica)).await;
            drop(standby);
            close(replica)?;
            let Some(won) = won? else { return Ok(()) };
            term::lead(&mut self, won).await?;
            if self.stop.is_cancelled() {
                return Ok(());
            }
            // Others come first.
            let now = self.now();
            self.seat.tried(now);
        }
    }

    pub(super) fn open_replica(&self) -> Result<Arc<Mutex<Replica>>, Failure> {
        let (path, unix_ms) = (self.data.path().to_owned(), Timestamp::now().as_millisecond());
        let opened = block_in_place(|| {
            Replica::open(Arc::new(FileSystem), path, self.community, empty_catalog(), unix_ms)
        });
        let (replica, findings) = opened.context("cannot open the copy of the shared log")?;
        for finding in findings {
            tracing::error!("{finding}");
        }
        Ok(Arc::new(Mutex::new(replica)))
    }

    /// Passes connections on until it is dropped.
    fn standby(&self, key: Key) -> Result<Tasks, Failure> {
        let Sockets { line, http, .. } = self.sockets.clones()?;
        let mut tasks = JoinSet::new();
        tasks.spawn(self.service.keep_alive());
        for (socket, service) in [(line, Relayed::Line), (http, Relayed::Http)] {
            if let Some(socket) = socket {
                let leader: LeaderAddress = self.leader.subscribe();
                tasks.spawn(relay::pass_on(tokio_listener(socket)?, service, key, leader));
            }
        }
        Ok(Tasks(tasks))
    }

    fn now(&self) -> u64 {
        milliseconds(self.began.elapsed())
    }

    /// Follows the log until this broker leads, or `None` when it shall stop.
    async fn follow(&mut self, replica: Arc<Mutex<Replica>>) -> Result<Option<Won>, Failure> {
        let (messages, mut read) = mpsc::channel(READ_AHEAD);
        let from = replica.lock().position().slot.next();
        let mut tasks = JoinSet::new();
        tasks.spawn(read_on(self.stream.clone(), from, messages));
        let (is_led, mut led) = mpsc::channel(1);
        tasks.spawn(ask(self.stream.clone(), is_led));
        let _tasks = Tasks(tasks);
        let checkpoints = Checkpoints::begin(Arc::clone(&replica), Arc::clone(&self.status));
        let won = self.until_won(&replica, &mut read, &mut led).await;
        checkpoints.end().await;
        won
    }

    async fn until_won(
        &mut self,
        replica: &Mutex<Replica>,
        read: &mut mpsc::Receiver<Result<(Slot, Bytes), ReadError>>,
        led: &mut mpsc::Receiver<bool>,
    ) -> Result<Option<Won>, Failure> {
        let mut turn = interval(TURN);
        turn.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // When the last message was read: its moment is at least that long ago.
        let mut last_read = Instant::now();
        loop {
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return Ok(None),
                said = self.bus.next() => self.heard(said, replica)?,
                Some(is_led) = led.recv() => {
                    let now = self.now();
                    self.seat.answers(now, is_led);
                }
                Some(message) = read.recv() => {
                    let (slot, bytes) = message.map_err(|error| Failure::failed(error.to_string()))?;
                    let verdict = block_in_place(|| replica.lock().read(slot, &bytes));
                    let verdict = verdict.map_err(|error| Failure::failed(error.to_string()))?;
                    self.status.set_applied(slot);
                    if let Verdict::Valid(message) = verdict {
                        last_read = Instant::now();
                        self.has_read(message.kind, message.epoch);
                    }
                }
                _ = turn.tick() => {
                    if self.seat.due(self.now()) > self.now() {
                        continue;
                    }
                    let now = self.now();
                    self.seat.tried(now);
                    let position = replica.lock().position();
                    let moment = Moment(position.moment + milliseconds(last_read.elapsed()));
                    let unix_ms = Timestamp::now().as_millisecond();
                    let stamp = Stamp { moment: moment.0, unix_ms };
                    let candidacy =
                        Candidacy::new(self.community, position, stamp, self.name.as_str());
                    // An attempt without an answer may be in the log. Then it is read, as a term in
                    // which nobody leads.
                    if self.stream.send(&candidacy.attempt).await.await == Answer::Done {
                        return Ok(Some(Won { candidacy, moment }));
                    }
                }
            }
        }
    }

    fn has_read(&mut self, kind: Kind, epoch: Slot) {
        let now = self.now();
        self.seat.read(now, kind, epoch);
        if matches!(kind, Kind::Opened | Kind::Left) {
            self.leader.send_replace(None);
        }
    }

    fn heard(&mut self, said: Said, replica: &Mutex<Replica>) -> Result<(), Failure> {
        let Said::Alive(heartbeat) = said else { return Ok(()) };
        if self.status.is_own(&heartbeat) {
            return Ok(());
        }
        if self.status.heartbeat().must_yield_to(&heartbeat) {
            let name = &self.name;
            return Err(Failure::failed(format!(
                "another broker of the community is named {name}; choose another name with --node"
            )));
        }
        let Heartbeat { name, leads, relay, .. } = heartbeat;
        let now = self.now();
        let leads = (leads > Slot(0)).then_some(leads);
        self.seat.heartbeat(now, name.as_str(), leads);
        if leads.is_some_and(|epoch| epoch >= replica.lock().position().epoch) {
            let is_other = |known: &mut Option<SocketAddr>| {
                let is_other = *known != Some(relay);
                *known = Some(relay);
                is_other
            };
            if self.leader.send_if_modified(is_other) {
                tracing::info!(leader = %name, "another broker leads");
            }
        }
        Ok(())
    }
}

/// A number that no other process has.
fn random_number() -> u64 {
    let MemberId(bits) = tidings_client::random_member_id();
    u64::try_from(bits >> 64).expect("64 of 128 bits are left")
}

/// Tasks that end with this value.
struct Tasks(#[expect(dead_code, reason = "aborts its tasks when it is dropped")] JoinSet<()>);

/// Closes a copy that nothing uses any more.
fn close(replica: Arc<Mutex<Replica>>) -> Result<(), Failure> {
    let replica = Arc::into_inner(replica).expect("all tasks that use it have ended").into_inner();
    block_in_place(|| replica.close()).map_err(|error| Failure::failed(error.to_string()))
}

/// Reads the log on, for ever. An engine that was restored to an older state is an error at last.
async fn read_on(
    stream: JetStream,
    mut next: Slot,
    messages: mpsc::Sender<Result<(Slot, Bytes), ReadError>>,
) {
    let mut shorter_since = None;
    loop {
        match stream.read(next).await {
            Ok(mut reader) => {
                shorter_since = None;
                while let Ok((slot, bytes)) = reader.next().await {
                    next = slot.next();
                    if messages.send(Ok((slot, bytes))).await.is_err() {
                        return;
                    }
                }
            }
            Err(error @ ReadError::Shorter { .. }) => {
                let since = *shorter_since.get_or_insert_with(Instant::now);
                if since.elapsed() > OLD_END_MAX {
                    let _ = messages.send(Err(error)).await;
                    return;
                }
            }
            Err(ReadError::Engine(error)) => tracing::debug!(%error, "cannot read the shared log"),
        }
        sleep(AGAIN).await;
    }
}

/// Asks again and again whether the leader is connected.
async fn ask(stream: JetStream, is_led: mpsc::Sender<bool>) {
    loop {
        sleep(Duration::from_millis(HEARTBEAT_MS)).await;
        if is_led.send(stream.is_led().await).await.is_err() {
            return;
        }
    }
}

pub(super) fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
