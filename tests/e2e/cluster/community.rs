//! Three brokers of one community.

use std::net::SocketAddr;

use serde_json::Value;
use tempfile::TempDir;

use crate::support::nats::NatsServers;
use crate::support::ports::free_address;
use crate::support::process::{Process, ProcessOutput, Server, run_tidings, tidings_command};
use crate::support::wait::wait_until;

/// Brokers of the community `east`, with their servers.
pub(super) struct Community {
    pub(super) servers: NatsServers,
    pub(super) brokers: [Member; 3],
    folder: TempDir,
}

/// A broker, which may not run.
pub(super) struct Member {
    pub(super) process: Option<Process>,
    pub(super) address: SocketAddr,
    relay: SocketAddr,
    pub(super) folder: TempDir,
}

impl Community {
    /// Starts servers and brokers, and waits until one leads.
    #[track_caller]
    pub(super) fn start() -> Self {
        let (servers, folder) = (NatsServers::start(), TempDir::new().unwrap());
        create(&servers, &folder);
        let brokers = [0, 1, 2].map(|_| Member {
            process: None,
            address: free_address(),
            relay: free_address(),
            folder: TempDir::new().unwrap(),
        });
        let mut community = Self { servers, brokers, folder };
        (0..3).for_each(|at| community.start_broker(at));
        community.leader();
        community
    }

    #[track_caller]
    pub(super) fn start_broker(&mut self, at: usize) {
        let arguments = broker_arguments(&self.servers, &format!("n{at}"));
        let Member { address, relay, folder, .. } = &self.brokers[at];
        let more = ["--listen", &address.to_string(), "--relay-listen", &relay.to_string()];
        let words = arguments.iter().map(String::as_str).chain(more);
        let process = Process::start(&mut tidings_command(folder.path(), words));
        process.wait_for_line_with("listening on ");
        self.brokers[at].process = Some(process);
    }

    /// Ends a broker with a signal.
    #[track_caller]
    pub(super) fn end_broker(&mut self, at: usize, signal: &str) -> ProcessOutput {
        let process = self.brokers[at].process.take().expect("it runs");
        process.signal_and_finish(signal)
    }

    /// Sends a signal to a broker.
    #[track_caller]
    pub(super) fn signal(&self, at: usize, signal: &str) {
        self.brokers[at].process.as_ref().expect("it runs").signal(signal);
    }

    /// Runs `tidings cluster <words>` for the community.
    #[track_caller]
    pub(super) fn run(&self, words: &[&str]) -> ProcessOutput {
        let urls = self.servers.urls();
        run_tidings(self.folder.path(), &[&["cluster"], words, &["--cluster", &urls]].concat())
    }

    /// What each broker that lives says of itself.
    #[track_caller]
    fn status(&self) -> Vec<Value> {
        let lines = self.run(&["status", "east", "--json"]).stdout();
        lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Waits until exactly one broker leads. Returns which, and its epoch.
    #[track_caller]
    pub(super) fn leader(&self) -> (usize, u64) {
        wait_until("one leader", || {
            let status = self.status();
            let mut leaders = status.iter().filter(|broker| broker["state"] == "leader");
            let leader = leaders.next().filter(|_| leaders.next().is_none())?;
            let name = leader["node"].as_str().unwrap();
            Some((name[1..].parse().unwrap(), leader["epoch"].as_u64().unwrap()))
        })
    }

    /// Ends all brokers. Returns a broker of its own on each copy, each of which has everything.
    #[track_caller]
    pub(super) fn into_own_brokers(mut self) -> Vec<Server> {
        (0..3).for_each(|at| drop(self.end_broker(at, "TERM").expect_code(0)));
        // One that leads has read the log to its end.
        for at in 0..3 {
            self.start_broker(at);
            assert_eq!(self.leader().0, at);
            self.end_broker(at, "TERM").expect_code(0);
        }
        let leave = |member: Member| {
            run_tidings(member.folder.path(), &["cluster", "leave"]).expect_code(0);
            Server::start_in(member.folder, &["broker"], |_| ())
        };
        self.brokers.into_iter().map(leave).collect()
    }
}

/// Makes the community `east`. New servers first elect among themselves.
#[track_caller]
pub(super) fn create(servers: &NatsServers, folder: &TempDir) {
    let urls = servers.urls();
    let mut last = String::new();
    wait_until("a new community", || {
        let output = run_tidings(folder.path(), &["cluster", "create", "east", "--cluster", &urls]);
        assert!(!output.stderr().contains("exists"), "after {last}");
        last = output.stderr();
        (output.code == Some(0)).then_some(())
    });
}

/// The arguments of a broker of `east`, without its addresses.
pub(super) fn broker_arguments(servers: &NatsServers, node: &str) -> Vec<String> {
    let urls = servers.urls();
    let words = ["broker", "--cluster", &urls, "--community", "east", "--node", node];
    words.map(str::to_owned).to_vec()
}
