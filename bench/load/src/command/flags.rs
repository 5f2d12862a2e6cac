//! The flags of every measurement.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use crate::text::plural;
use crate::wire::Sync;

/// The port of a broker that is named by its host alone.
const PORT: u16 = 12_345;

/// The flags of every subcommand.
#[derive(Debug, Clone, Args)]
pub struct CommonFlags {
    /// Bytes of a payload
    #[arg(long, value_name = "BYTES", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=61_440))]
    pub size: u32,

    /// Measure the broker at HOST:PORT instead of starting one
    #[arg(long, value_name = "HOST:PORT", value_parser = parse_broker, conflicts_with_all = ["pin", "threads", "data"])]
    pub broker: Option<String>,

    /// Pin the broker to one processor and the load generator to another
    #[arg(long, value_name = "SERVER,CLIENT", value_parser = parse_pin)]
    pub pin: Option<(usize, usize)>,

    /// Threads of the broker that is started [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub threads: Option<u16>,

    /// When an event is confirmed [default: the default of the broker]
    #[arg(long, value_enum, value_name = "WHEN")]
    pub sync: Option<Sync>,

    /// Data directory of the broker that is started; it is kept [default: a temporary one]
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,

    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `HOST:PORT`; a host alone has the default port, and a port alone is on this machine.
fn parse_broker(text: &str) -> Result<String, String> {
    if let Ok(ip) = text.trim_matches(['[', ']']).parse::<IpAddr>() {
        return Ok(SocketAddr::new(ip, PORT).to_string());
    }
    if let Ok(port) = text.trim_start_matches(':').parse::<u16>() {
        return Ok(format!("127.0.0.1:{port}"));
    }
    match text.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
            Ok(text.to_owned())
        }
        None if !text.is_empty() => Ok(format!("{text}:{PORT}")),
        _ => Err(format!("write HOST:PORT, such as 127.0.0.1:{PORT}")),
    }
}

fn parse_pin(text: &str) -> Result<(usize, usize), String> {
    let (server, client) = text.split_once(',').ok_or("write two processors, such as 0,1")?;
    let number = |text: &str| {
        text.trim().parse().map_err(|_| format!("{text} is not the number of a processor"))
    };
    Ok((number(server)?, number(client)?))
}

/// The length of a measurement.
#[derive(Debug, Clone, Copy, Args, Serialize)]
pub struct RunFlags {
    /// Length of a run
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub seconds: u64,

    /// Number of runs; the median is reported
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=1000))]
    #[serde(skip)]
    pub runs: u16,
}

impl RunFlags {
    /// The length of a run.
    pub fn run(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }

    /// For the title of a report.
    pub fn title(&self) -> String {
        format!("median of {} of {} s", plural(self.runs.into(), "run"), self.seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pin_needs_two_processors() {
        assert_eq!(parse_pin("0, 1"), Ok((0, 1)));
        assert!(parse_pin("0").is_err() && parse_pin("a,b").is_err());
    }

    #[test]
    fn an_address_may_lack_its_host_or_port() {
        for (typed, address) in [
            ("10.0.0.1:1", "10.0.0.1:1"),
            ("a.example", "a.example:12345"),
            ("7000", "127.0.0.1:7000"),
            (":7000", "127.0.0.1:7000"),
            ("[::1]", "[::1]:12345"),
            ("[::1]:7", "[::1]:7"),
        ] {
            assert_eq!(parse_broker(typed), Ok(address.to_owned()));
        }
        assert!(parse_broker("").is_err() && parse_broker("a:b").is_err());
    }
}
