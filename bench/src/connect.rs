//! Cycles of connect, subscribe and close.

#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use tidings_load::connection::{self, run_step};
use tidings_load::figure::to_f64;
use tidings_load::server::CpuCost;
use tidings_load::wire::{ReadUntil, SetupStep};
use tidings_load::{Figure, ProgressFn, Target};

/// Connections that are open at once, so that the broker does not wait for the generator.
const OPEN_CONNECTIONS: usize = 32;

/// Cycles between two progress reports.
const PROGRESS_CYCLES: u64 = 4096;

/// Cycles, one after the other.
#[derive(Debug, Clone, Copy)]
pub struct Connect {
    /// Duration of a run.
    pub run: Duration,
    /// Number of runs.
    pub runs: usize,
}

impl Connect {
    /// Runs the measurement. A subscription without an answer is an error.
    pub fn measure(
        &self,
        target: Target<'_>,
        progress: &mut ProgressFn<'_>,
    ) -> anyhow::Result<Vec<Figure>> {
        connection::create_topic(&target)?;
        let mut cycle = ConnectCycles::new(target);
        let mut rate = Figure::new("cycles_per_second", "cycles/s", 0);
        let mut cost = CpuCost::per_thousand_cycles();
        for _ in 0..self.runs {
            let (before, began) = (cycle.completed, Instant::now());
            let cpu_before = CpuCost::snapshot(target.server)?;
            while began.elapsed() < self.run {
                cycle.advance()?;
                if cycle.completed.is_multiple_of(PROGRESS_CYCLES) {
                    progress(&format!("{} connections opened and closed", cycle.completed))?;
                }
            }
            let (cycles, took) = (to_f64(cycle.completed - before), began.elapsed());
            cost.add_run(cpu_before, target.server, cycles, took)?;
            rate.runs.push(cycles / took.as_secs_f64());
        }
        let mut figures = vec![rate];
        figures.extend(cost.figures(target.server)?);
        Ok(figures)
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

    fn advance(&mut self) -> anyhow::Result<()> {
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
    fn connect(&self) -> anyhow::Result<TcpStream> {
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
