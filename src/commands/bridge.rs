//! `tidings bridge`: publishes messages of another system.

use clap::{Args, Subcommand};
use tidings_connectors::zmq::frames::PayloadFrame;
use tidings_connectors::zmq::{BridgeConfig, ConnectEndpoint, ZmqSockets};
use tidings_protocol::TopicName;

use crate::client::connection;
use crate::flags::broker::BrokerFlag;
use crate::process::signals::stop_on_signal;
use crate::services::zmq::{ZmqEnd, ZmqProcess, ZmqWork};
use crate::terminal::failure::Failure;
use crate::terminal::output::Console;

const ZMQ_EXAMPLES: &str = "\
Examples:
  tidings bridge zmq --connect tcp://10.0.0.7:5556 --topic weather
  tidings bridge zmq --connect tcp://10.0.0.7:5556 --topic weather --subscribe rain. --frame 1
  tidings bridge zmq --connect tcp://10.0.0.7:12347 --topic log --subscribe log
                                                     a topic of another Tidings (--zmq-pub)

A message that cannot be an event (invalid UTF-8, a control character or line end, over 60 KiB) is
dropped and counted in the log. The broker must run at the start; the PUB socket may start later,
and the log says why it cannot be reached. The bridge reconnects to both sides. Messages sent while
it is disconnected are lost, because a PUB socket stores nothing. If the frames come from another
Tidings (topic, number, payload), the numbers show how many were missed, and the log counts them.

Exit codes: 0 stopped; 1 failure, or the broker had not confirmed all messages at the stop; 2 wrong
usage.";

/// The label that the broker shows.
const NAME: &str = "zmq-bridge";

/// The subcommands of `tidings bridge`.
#[derive(Debug, Subcommand)]
pub(crate) enum Bridge {
    /// Publish the messages of a ZeroMQ PUB socket
    Zmq(ZmqBridgeArgs),
}

/// The flags of `tidings bridge zmq`.
#[derive(Debug, Args)]
#[command(after_help = ZMQ_EXAMPLES)]
pub(crate) struct ZmqBridgeArgs {
    /// Address of the PUB socket: `tcp://HOST:PORT`
    #[arg(long, value_name = "ENDPOINT")]
    connect: ConnectEndpoint,

    /// Topic to publish on; created if it does not exist
    #[arg(long)]
    topic: TopicName,

    /// Receive only messages with this prefix in the first frame; may be repeated
    #[arg(long, value_name = "PREFIX")]
    subscribe: Vec<String>,

    /// Frame that holds the payload: a number from 0, or last
    #[arg(long, value_name = "N", default_value = "last")]
    frame: PayloadFrame,

    #[command(flatten)]
    broker: BrokerFlag,
}

/// Runs until SIGINT or SIGTERM.
pub(crate) async fn run(Bridge::Zmq(args): Bridge) -> Result<(), Failure> {
    let stop = stop_on_signal()?;
    // The ZeroMQ process would retry without end, but a missing broker is an error at the start.
    drop(connection::connect(&args.broker.broker, NAME).await?);
    let ready =
        format!("bridging {} to topic {} of {}", args.connect, args.topic, args.broker.broker);
    let prefixes = if args.subscribe.is_empty() { vec![String::new()] } else { args.subscribe };
    let BrokerFlag { broker } = args.broker;
    let bridge =
        BridgeConfig { connect: args.connect, prefixes, frame: args.frame, topic: args.topic };
    let sockets = ZmqSockets { bridge: Some(bridge), ..ZmqSockets::default() };
    let zmq = ZmqProcess::launch(ZmqWork { broker, key: None, sockets }).await?;
    let mut console = Console::new();
    console.line(&ready)?;
    stop.cancelled().await;
    match zmq.stop().await {
        Some(ZmqEnd { last_line, is_complete }) if is_complete || last_line.is_some() => {
            last_line.iter().try_for_each(|line| console.line(line))?;
            if is_complete { Ok(()) } else { Err(Failure::Unsuccessful) }
        }
        _ => {
            let text = "the ZeroMQ process ended early or was killed; its last messages may not be published";
            Err(Failure::failed(text))
        }
    }
}
