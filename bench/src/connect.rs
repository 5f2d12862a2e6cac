//! Cycles of connect, subscribe and close.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};

use anyhow::{Context, Result};
use clap::Args;
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use serde::Serialize;
use tidings_load::command::flags::RunFlags;
use tidings_load::command::{Benchmark, Outcome};
use tidings_load::connection::{self, run_step};
use tidings_load::figure::to_f64;
use tidings_load::server::{CpuCost, RunStart};
use tidings_load::wire::{ReadUntil, SetupStep};
use tidings_load::{Figure, Progress, Target};

/// Connections that are open at once, so that the broker does not wait for the generator.
const OPEN_CONNECTIONS: usize = 32;

/// Cycles between two progress reports.
const PROGRESS_CYCLES: u64 = 4096;

/// Cycles, one after the other.
#[derive(Debug, Clone, Copy, Args, Serialize)]
pub struct Connect {
    /// Duration of the runs.
    #[command(flatten)]
    #[serde(flatten)]
    pub length: RunFlags,
}

impl Benchmark for Connect {
    const NAME: &'static str = "connect";

    fn title(&self) -> String {
        self.length.title()
    }

    /// A subscription without an answer is an error.
    fn measure(&self, target: Target<'_>, progress: Progress<'_>) -> Result<Outcome> {
        connection::create_topic(&target)?;
        let mut cycle = ConnectCycles::new(target);
        let mut rate = Figure::new("cycles_per_second", "cycles/s", 0);
        let key = "broker_cpu_us_per_1000_cycles";
        let mut cost = CpuCost::new(Figure::new(key, "broker us per 1,000", 0), 1000.0);
        for _ in 0..self.length.runs {
            let (before, start) = (cycle.completed, RunStart::now(target.server)?);
            while start.elapsed() < self.length.run() {
                cycle.advance()?;
                if cycle.completed.is_multiple_of(PROGRESS_CYCLES) {
                    progress(&format!("{} connections opened and closed", cycle.completed))?;
                }
            }
            let cycles = cycle.completed - before;
            rate.runs.push(to_f64(cycles) / cost.end_run(start, target.server, cycles)?);
        }
        Ok(cost.append_to(vec![rate], target.server)?.into())
    }
}

/// A queue of open connections. Each step opens one and sends its subscription, and reads the
/// answer of the oldest one and closes it.
struct ConnectCycles {
    address: SocketAddr,
    subscription: SetupStep,
    open: VecDeque<TcpStream>,
    completed: u64,
}

impl ConnectCycles {
    fn new(target: Target<'_>) -> Self {
        let subscription = target.wire.pipelined_subscribe(target.topic);
        Self { address: target.address, subscription, open: VecDeque::new(), completed: 0 }
    }

    fn advance(&mut self) -> Result<()> {
        let mut socket = self.connect()?;
        run_step(&mut socket, &SetupStep::new(self.subscription.send.clone(), ReadUntil::Nothing))?;
        self.open.push_back(socket);
        if self.open.len() > OPEN_CONNECTIONS {
            let mut oldest = self.open.pop_front().expect("the queue is not empty");
            run_step(&mut oldest, &SetupStep::new([], self.subscription.until))?;
            self.completed += 1;
        }
        Ok(())
    }

    /// Connects to a broker on this machine, from a new source address every 256 cycles. The side
    /// that closes first keeps the port for a minute, and one address has only 28,000 ports.
    fn connect(&self) -> Result<TcpStream> {
        let open_socket = || -> std::io::Result<TcpStream> {
            if !self.address.ip().is_loopback() || !self.address.is_ipv4() {
                return TcpStream::connect(self.address);
            }
            let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
            let [.., high, low] = (self.completed / 256).to_be_bytes();
            bind(&socket, &SocketAddr::from((Ipv4Addr::new(127, 1, high, low), 0)))?;
            connect(&socket, &self.address)?;
            Ok(socket.into())
        };
        let socket =
            open_socket().with_context(|| format!("cannot connect to {}", self.address))?;
        socket.set_nodelay(true)?;
        Ok(socket)
    }
}
