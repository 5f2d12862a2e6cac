//! Connect, subscribe, close.

#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};

use crate::connection::{self, take_step};
use crate::figure::number;
use crate::server::Cost;
use crate::wire::{Step, Until};
use crate::{Figure, Target, Watch};

/// Connections that are open at once, so that the broker need not wait for the generator.
const OPEN: usize = 32;

/// How often somebody is told how far it is, in cycles.
const WATCH_EVERY: u64 = 4096;

/// Cycles, for so long.
#[derive(Debug, Clone, Copy)]
pub struct Connect {
    /// Length of a run.
    pub run: Duration,
    /// Runs.
    pub runs: usize,
}

impl Connect {
    /// Measures it. An error, too, if a subscription is not answered.
    pub fn measure(
        &self,
        target: Target<'_>,
        watch: &mut Watch<'_>,
    ) -> anyhow::Result<Vec<Figure>> {
        connection::prepare(&target)?;
        let mut cycle = Cycle::new(target);
        let mut rate = Figure::new("cycles_per_second", "cycles/s", 0);
        let mut cost = Cost::per_thousand_cycles();
        for _ in 0..self.runs {
            let (before, began) = (cycle.done, Instant::now());
            let costing = Cost::before(target.server)?;
            while began.elapsed() < self.run {
                cycle.turn()?;
                if cycle.done.is_multiple_of(WATCH_EVERY) {
                    watch(&format!("{} connections were opened and closed", cycle.done))?;
                }
            }
            let (cycles, took) = (number(cycle.done - before), began.elapsed());
            cost.after(costing, target.server, cycles, took)?;
            rate.runs.push(cycles / took.as_secs_f64());
        }
        let mut figures = vec![rate];
        figures.extend(cost.figures(target.server)?);
        Ok(figures)
    }
}

/// A row of connections: one is opened and says everything, the oldest one hears its answer and is
/// closed.
struct Cycle {
    address: SocketAddr,
    said: Step,
    open: VecDeque<TcpStream>,
    done: u64,
}

impl Cycle {
    fn new(target: Target<'_>) -> Self {
        let said = target.wire.at_once(target.topic);
        Self { address: target.address, said, open: VecDeque::new(), done: 0 }
    }

    fn turn(&mut self) -> anyhow::Result<()> {
        let mut socket = self.connect()?;
        take_step(&mut socket, &Step::new(self.said.send.clone(), Until::Nothing))?;
        self.open.push_back(socket);
        if self.open.len() > OPEN {
            let mut oldest = self.open.pop_front().expect("it is longer than nothing");
            take_step(&mut oldest, &Step::new([], self.said.until))?;
            self.done += 1;
        }
        Ok(())
    }

    /// Connects to a broker on this machine from an address of its own now and then: who closes
    /// first keeps the port for a minute, and there are only 28,000 for one address.
    fn connect(&self) -> anyhow::Result<TcpStream> {
        let made = || -> std::io::Result<TcpStream> {
            if !self.address.ip().is_loopback() || !self.address.is_ipv4() {
                return TcpStream::connect(self.address);
            }
            let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
            let [.., high, low] = (self.done / 256).to_be_bytes();
            bind(&socket, &SocketAddr::from((Ipv4Addr::new(127, 1, high, low), 0)))?;
            connect(&socket, &self.address)?;
            Ok(socket.into())
        };
        let socket = made().with_context(|| format!("cannot connect to {}", self.address))?;
        socket.set_nodelay(true)?;
        Ok(socket)
    }
}
