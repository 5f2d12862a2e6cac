//! The brokers of the comparison, and how each of them starts.

use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener};
use std::process::Command;

use anyhow::{Context, Result, bail};
use tidings_load::broker::{self, Broker, DataDir};
use tidings_load::wire::Sync;
use tidings_load::{ReadyWhen, Server, Tidings, WireProtocol};

use crate::Cli;
use crate::programs::{Program, name};
use crate::protocols::{BareLines, Nats, Redis};

/// Starts a broker with an empty directory. Topics of Tidings are confirmed after a sync.
pub(crate) fn start(cli: &Cli, program: Program) -> Result<Broker> {
    let data = DataDir::temporary(&cli.data)?;
    let dir = data.path();
    let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
    let port = address.port().to_string();
    let mut ready = ReadyWhen::AcceptsConnections(address);
    let (mut command, wire): (Command, Box<dyn WireProtocol>) = match program {
        Program::Tidings => {
            let (command, prints_address) = broker::tidings(&cli.tidings()?, &data);
            ready = prints_address;
            (command, Box::new(Tidings::plain(Some(Sync::Always))))
        }
        Program::Nats | Program::Jetstream => {
            let has_stream = program == Program::Jetstream;
            let mut command = Command::new("nats-server");
            command.args(["-a", "127.0.0.1", "-p", &port]);
            if has_stream {
                command.arg("-js").arg("-sd").arg(dir);
            }
            (command, Box::new(Nats { has_stream }))
        }
        Program::Redis | Program::RedisStreams => {
            let has_streams = program == Program::RedisStreams;
            let mut command = Command::new("redis-server");
            command.args(["--bind", "127.0.0.1", "--port", &port, "--save", ""]);
            command.args(["--maxclients", "11000", "--dir"]).arg(dir);
            if has_streams {
                command.args(["--appendonly", "yes", "--appendfsync", "everysec"]);
            }
            (command, Box::new(Redis { has_streams }))
        }
        Program::Relay => {
            let mut command = Command::new(std::env::current_exe()?);
            command.args(["--relay", &address.to_string()]);
            (command, Box::new(BareLines))
        }
        Program::Wget2 | Program::Crawlee => bail!("this program is not a broker"),
    };
    let errors = dir.join("errors");
    command.stdout(File::create(dir.join("output"))?).stderr(File::create(&errors)?);
    let server = Server::start(command, ready, Some(cli.pin[0])).with_context(|| {
        let errors = fs::read_to_string(&errors).unwrap_or_default();
        format!("{}: {}", name(program), errors.lines().last().unwrap_or("(no message)"))
    })?;
    Ok(Broker { server, wire, data })
}
