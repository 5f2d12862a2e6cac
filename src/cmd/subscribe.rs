//! `tidings sub`: prints the events of a topic as they come.

use std::{
    collections::BTreeMap,
    io::{self, BufWriter, Write},
};

use clap::Args;
use serde::Serialize;
use tidings_protocol::{
    Command, Payload, Seq, StartAt, TopicName,
    client::{ClientError, Deliveries, Delivery},
};

use crate::{failure::Failure, flags::BrokerFlag, link, output::note, signals::stop_on_signal};

const EXAMPLES: &str = "\
Examples:
  tidings sub new-url                         what comes from now on
  tidings sub new-url --from -10              the newest ten and what comes
  tidings sub job-done --json | jq .          with number, target and attributes
  tidings sub new-url --from first --count 1  the oldest event that is kept

Events that are no longer kept are named on standard error (LAG); nothing is skipped silently.";

/// The flags of `tidings sub`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SubArgs {
    /// The topic; it comes into being if it is new
    topic: TopicName,

    /// Begin at: first, last, a number, -N for the newest N, or an RFC 3339 time [default: what comes]
    #[arg(long, value_name = "WHERE", allow_hyphen_values = true)]
    from: Option<StartAt>,

    /// One JSON object a line: topic, seq, payload, and target and attributes where it has them
    #[arg(long)]
    json: bool,

    /// Stop after this many events
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,

    #[command(flatten)]
    broker: BrokerFlag,
}

/// Runs until the count is reached, the reader of our output or the broker is gone, or a signal.
pub(crate) async fn run(args: SubArgs) -> Result<(), Failure> {
    let stop = stop_on_signal()?;
    let broker = &args.broker.broker;
    let (client, mut deliveries) = link::connect(broker, "tidings-sub").await?;
    let subscribe =
        Command::Sub { topic: args.topic.clone(), from: args.from, cursor: None, takeover: false };
    client.request(&subscribe).await.map_err(|error| match error {
        ClientError::Refused(error) => Failure::failed(format!("{broker} refuses: {error}")),
        error => Failure::failed(format!("{broker}: {error}")),
    })?;
    let mut printer = Printer::new(args.json);
    let ended = tokio::select! {
        ended = print(&mut deliveries, &mut printer, args.count) => ended,
        () = stop.cancelled() => {
            printer.flush()?;
            return Ok(());
        }
    }?;
    if let Some(error) = ended {
        let resume = printer.last.map_or(String::new(), |Seq(last)| {
            format!("; the last event was {last}, resume with --from {}", last + 1)
        });
        return Err(Failure::failed(format!("{broker}: {error}{resume}")));
    }
    Ok(())
}

/// Prints until the count is reached (`None`) or the connection is gone.
async fn print(
    deliveries: &mut Deliveries,
    printer: &mut Printer,
    count: Option<u64>,
) -> Result<Option<ClientError>, Failure> {
    loop {
        if count.is_some_and(|count| printer.printed >= count) {
            printer.flush()?;
            return Ok(None);
        }
        // Written through as soon as there is nothing more at hand.
        let delivery = tokio::select! {
            biased;
            delivery = deliveries.next() => delivery,
            () = std::future::ready(()), if printer.buffered => {
                printer.flush()?;
                continue;
            }
        };
        let Some(delivery) = delivery else {
            printer.flush()?;
            return Ok(Some(deliveries.reason()));
        };
        printer.delivery(&delivery)?;
    }
}

/// Writes deliveries to standard output through a buffer.
struct Printer {
    output: BufWriter<io::Stdout>,
    buffered: bool,
    json: bool,
    printed: u64,
    last: Option<Seq>,
}

impl Printer {
    fn new(json: bool) -> Self {
        // A large buffer around the one of the standard library, which ends at every line.
        let output = BufWriter::with_capacity(64 * 1024, io::stdout());
        Self { output, buffered: false, json, printed: 0, last: None }
    }

    fn delivery(&mut self, delivery: &Delivery) -> Result<(), Failure> {
        match delivery {
            Delivery::Msg { topic, seq, payload } => {
                self.last = Some(*seq);
                self.printed += 1;
                if self.json {
                    self.line(&event_json(topic, *seq, payload))
                } else {
                    self.line(payload)
                }
            }
            Delivery::Lag { topic, from, to } => {
                self.skipped("lag", "are no longer kept", topic, *from, *to)
            }
            Delivery::Gap { topic, from, to } => {
                self.skipped("gap", "were lost in a crash", topic, *from, *to)
            }
            Delivery::Notice(error) => {
                note(&format!("the broker says: {error}"));
                Ok(())
            }
            Delivery::Task { .. } => Ok(()),
        }
    }

    fn skipped(
        &mut self,
        word: &str,
        what: &str,
        topic: &TopicName,
        from: Seq,
        to: Seq,
    ) -> Result<(), Failure> {
        self.last = Some(to);
        if self.json {
            let (topic, skipped) = (topic.as_str(), word);
            return self.line(&json(&Hole { topic, skipped, from: from.0, to: to.0 }));
        }
        note(&format!("events {from} to {to} of {topic} {what}"));
        Ok(())
    }

    fn line(&mut self, text: &str) -> Result<(), Failure> {
        self.buffered = true;
        writeln!(self.output, "{text}").map_err(Failure::from_output)
    }

    fn flush(&mut self) -> Result<(), Failure> {
        self.buffered = false;
        self.output.flush().map_err(Failure::from_output)
    }
}

/// An event with everything that its payload says.
#[derive(Serialize)]
struct Event<'a> {
    topic: &'a str,
    seq: u64,
    payload: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<&'a str>,
    /// Only with a target; of attributes given twice the first counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    attributes: Option<BTreeMap<&'a str, &'a str>>,
}

/// Numbers for which there is no event.
#[derive(Serialize)]
struct Hole<'a> {
    topic: &'a str,
    /// `lag`: no longer kept; `gap`: lost in a crash.
    skipped: &'a str,
    from: u64,
    to: u64,
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("text and numbers always serialise")
}

fn event_json(topic: &TopicName, seq: Seq, payload: &str) -> String {
    let parsed = Payload::parse(payload);
    let attributes = parsed.target().map(|_| {
        let mut attributes = BTreeMap::new();
        for (key, value) in parsed.attributes() {
            attributes.entry(key).or_insert(value);
        }
        attributes
    });
    let (topic, target) = (topic.as_str(), parsed.target());
    json(&Event { topic, seq: seq.0, payload, target, attributes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_has_no_attributes_and_a_url_has() {
        let topic: TopicName = "t".parse().unwrap();
        assert_eq!(
            event_json(&topic, Seq(7), "just \"text\""),
            r#"{"topic":"t","seq":7,"payload":"just \"text\""}"#
        );
        assert_eq!(
            event_json(&topic, Seq(8), "http://a/ job=x prio=5 job=y"),
            r#"{"topic":"t","seq":8,"payload":"http://a/ job=x prio=5 job=y","target":"http://a/","attributes":{"job":"x","prio":"5"}}"#
        );
    }
}
