//! Real servers of NATS with JetStream, three for each test.

use std::fs;
use std::path::Path;
use std::process::{self, Command};
use std::sync::atomic::{AtomicU8, Ordering};

use tempfile::TempDir;

use super::process::Process;

/// Three servers of one cluster. Each has an address of its own, with the usual ports.
#[derive(Debug)]
pub(crate) struct NatsServers {
    folder: TempDir,
    hosts: [String; 3],
    running: [Option<Process>; 3],
}

impl NatsServers {
    /// Starts them. They sync what they confirm.
    #[track_caller]
    pub(crate) fn start() -> Self {
        Self::start_with("sync_interval: always")
    }

    /// Starts them with this setting of JetStream.
    #[track_caller]
    pub(crate) fn start_with(setting: &str) -> Self {
        static STARTED: AtomicU8 = AtomicU8::new(0);
        // Addresses that no other process uses, so that a killed server finds its ports free.
        let [.., a, b] = process::id().to_be_bytes();
        let first = 160 + 3 * (STARTED.fetch_add(1, Ordering::Relaxed) % 30);
        let hosts = [0, 1, 2].map(|number| format!("127.{}.{a}.{b}", first + number));
        let folder = TempDir::new().unwrap();
        let routes = hosts.each_ref().map(|host| format!("nats://{host}:6222")).join(", ");
        for (number, host) in hosts.iter().enumerate() {
            let store = folder.path().join(number.to_string()).display().to_string();
            let config = format!(
                "server_name: s{number}\nlisten: {host}:4222\nhttp: {host}:8222\n\
                 jetstream {{ store_dir: {store:?}, {setting} }}\n\
                 cluster {{ name: three, listen: {host}:6222, routes: [{routes}] }}\n"
            );
            fs::write(folder.path().join(format!("{number}.conf")), config).unwrap();
        }
        let mut servers = Self { folder, hosts, running: [None, None, None] };
        (0..3).for_each(|number| servers.start_one(number));
        servers
    }

    /// The value of `--cluster`.
    pub(crate) fn urls(&self) -> String {
        self.hosts.each_ref().map(|host| format!("nats://{host}")).join(",")
    }

    /// Starts one again, and waits until it accepts connections.
    #[track_caller]
    pub(crate) fn start_one(&mut self, number: usize) {
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/venv/bin/nats-server");
        let config = self.folder.path().join(format!("{number}.conf"));
        let server = Process::start(Command::new(program).arg("--config").arg(config));
        server.wait_for_line_with("Listening for client connections");
        self.running[number] = Some(server);
    }

    /// Kills one.
    #[track_caller]
    pub(crate) fn kill(&mut self, number: usize) {
        let server = self.running[number].take().expect("it runs");
        server.signal_and_finish("KILL");
    }
}
