//! `tidings group members`, `drain` and `undrain`: the workers of a group.

use clap::Args;
use tidings_protocol::status::{DrainStatus, ListedMember, MemberFields, MemberState};
use tidings_protocol::{DEFAULT_GROUP, GroupAction, GroupName};

use super::tasks::{duration, or_dash};
use super::{NAME, command};
use crate::client::lists::{Columns, ListFlags, print_listed};
use crate::client::manage::{BrokerClient, OutputFlags, json_line};
use crate::client::received::Received;
use crate::flags::one_word;
use crate::terminal::failure::Failure;
use crate::terminal::output::{Console, format_count, plural, printable};

const EXAMPLES: &str = "\
Examples:
  tidings group members                      the crawlers, and how many tasks each of them holds
  tidings group drain crawlers 5b0c6f1e      the first one gets no further tasks
  tidings group tasks --state processing     the tasks that it still has

DONE, FAILED and LOST count since the worker joined. RATE is how many tasks it did per second, over
about the last 10 s. HEARD is the time since it sent something. RENDER is the number of its tasks
that the broker knows to need a browser, and how many of these it may hold at once. With --render
always or patterns, a worker decides by itself, and the number is -.

States:
  active    gets tasks as its credit allows
  draining  drained by an operator, and still holds tasks
  drained   drained by an operator, and holds nothing: it can be stopped
  silent    one of its leases ended without an answer; it gets no task until it sends something
  away      not connected; it keeps its tasks until their leases end";

const DRAIN: &str = "\
Examples:
  tidings group drain crawlers 5b0c6f1e
  tidings group undrain crawlers 5b0c6f1e

The worker finishes the tasks that it has, and other workers get all further ones. It stays drained
when it reconnects, and when the broker is restarted. A worker program that is started again is a
new member, which is not drained.";

/// The headings of the table.
pub(crate) const HEADINGS: &str =
    "MEMBER STATE CREDIT> HELD> RENDER> DONE> FAILED> LOST> RATE> HEARD> NAME ADDRESS";

/// The longest name and address in a table, in characters.
const TEXT_CHARS_MAX: usize = 64;

/// The flags of `tidings group members`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct MembersArgs {
    /// The group
    #[arg(default_value = DEFAULT_GROUP)]
    group: GroupName,

    #[command(flatten)]
    list: ListFlags,

    #[command(flatten)]
    output: OutputFlags,
}

/// The flags of `tidings group drain` and `undrain`.
#[derive(Debug, Args)]
#[command(after_help = DRAIN)]
pub(crate) struct DrainArgs {
    /// The group
    group: GroupName,

    /// The member, as `tidings group members` lists it: MEMBER, or a NAME that only it has
    #[arg(value_parser = one_word)]
    member: String,

    #[command(flatten)]
    output: OutputFlags,
}

/// Lists the members.
pub(super) async fn run(args: &MembersArgs) -> Result<(), Failure> {
    let members = command(GroupAction::Members, &args.group, Vec::new());
    let columns = Columns {
        object: |line: &str| json_line(&ListedMember::parse(line)),
        headings: HEADINGS,
        row: |line: &str| row(&Received::parse(line, ListedMember::parse)),
    };
    print_listed(NAME, &members, &args.list, &args.output, columns).await
}

/// A member as a row.
pub(crate) fn row(member: &Received<ListedMember>) -> Vec<String> {
    let MemberFields { state, credit, held, render, rendering, name, address, .. } = &member.fields;
    // A worker with a rule of its own renders tasks of which the broker does not know it.
    let known = rendering.filter(|tasks| *tasks > 0 || *held == 0).map(|tasks| tasks.to_string());
    let browsers = render.map(|render| format!("{}/{render}", or_dash(known.as_ref())));
    let label = |text: &Option<String>| printable(&or_dash(text.as_ref()), TEXT_CHARS_MAX);
    // A count of 0 is left out. A broker that counts sends the time of each connected member.
    let counts_nothing = *state != MemberState::Away && !member.has("joined-ms");
    let count = |count: Option<u64>| match count {
        None if counts_nothing => "-".to_owned(),
        count => format_count(count.unwrap_or(0)),
    };
    let rate = match member.fields.rate {
        None if counts_nothing => "-".to_owned(),
        rate => rate.unwrap_or_default().to_string(),
    };
    vec![
        member.member.clone(),
        member.cell("state", state.as_str()),
        member.count("credit", *credit),
        member.count("held", *held),
        or_dash(browsers.as_ref()),
        count(member.fields.done),
        count(member.fields.failed),
        count(member.fields.lost),
        rate,
        member.fields.heard_ms.map_or("-".to_owned(), duration),
        label(name),
        label(address),
    ]
}

/// Drains a member, or ends that.
pub(super) async fn drain(action: GroupAction<'_>, args: &DrainArgs) -> Result<(), Failure> {
    let drain = command(action, &args.group, vec![("member", &args.member)]);
    let answer = BrokerClient::connect(&args.output.broker, NAME).await?.request(&drain).await?;
    let status = DrainStatus::parse(&answer.ok);
    let mut console = Console::new();
    if args.output.json {
        return console.line(&json_line(&status));
    }
    let DrainStatus { member, fields: MemberFields { state, held, .. }, .. } = status;
    console.line(&match state {
        MemberState::Draining => format!("{member} is draining: it holds {}", plural(held, "task")),
        state => format!("{member} is {state}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_a_row() {
        let line = "5b0c6f1e state=draining credit=1000 held=7 render=6 rendering=2 name=web-3 \
                    address=10.0.0.7:5123 done=5123 failed=4 rate=12.5 joined-ms=99 heard-ms=4200 \
                    new=1";
        let row = |line: &str| row(&Received::parse(line, ListedMember::parse));
        assert_eq!(row(line)[..5], ["5b0c6f1e", "draining", "1,000", "7", "2/6"]);
        let shown = ["5,123", "4", "0", "12.5", "4 s", "web-3", "10.0.0.7:5123"];
        assert_eq!(row(line)[5..], shown);
        for (held, rendered) in [(0, "0/3"), (40, "-/3")] {
            let line = format!("5b0c6f1e state=active credit=40 held={held} render=3 rendering=0");
            assert_eq!(row(&line)[4], rendered);
        }
        let away = row("5b0c6f1e state=away credit=0 held=1");
        assert_eq!(away[4..], ["-", "0", "0", "0", "0.0", "-", "-", "-"]);
        let of_older_broker = row("5b0c6f1e state=active credit=4 held=1");
        assert_eq!(of_older_broker[2..], ["4", "1", "-", "-", "-", "-", "-", "-", "-", "-"]);
    }
}
