//! `tidings group members`, `drain` and `undrain`: the workers of a group.

use clap::Args;
use tidings_protocol::status::{DrainStatus, ListedMember, MemberFields, MemberState};
use tidings_protocol::{DEFAULT_GROUP, GroupAction, GroupName};

use super::tasks::or_dash;
use super::{NAME, command, print_listed};
use crate::client::manage::{BrokerClient, OutputFlags, json_line};
use crate::terminal::failure::Failure;
use crate::terminal::output::{Console, format_count, plural, printable};

const EXAMPLES: &str = "\
Examples:
  tidings group members                      the crawlers, and how many tasks each of them holds
  tidings group drain crawlers 5b0c6f1e      the first one gets no further tasks
  tidings group tasks --state processing     the tasks that it still has

RENDER counts the tasks that need a browser, of those that the worker may hold at once.

States:
  active    gets tasks as its credit allows
  draining  drained by an operator, and still holds tasks
  drained   drained by an operator, and holds nothing: it can be stopped
  silent    a lease of it ended without an answer; it gets no task until it sends something
  away      not connected; it keeps its tasks until their leases end";

const DRAIN: &str = "\
Examples:
  tidings group drain crawlers 5b0c6f1e
  tidings group undrain crawlers 5b0c6f1e

The worker ends the tasks that it has, and the others get the rest. It stays drained when it connects
again, and when the broker is restarted. A worker program that is started again is a new member, which
is not drained.";

/// The longest name and address in a table, in characters.
const TEXT_CHARS_MAX: usize = 64;

/// The flags of `tidings group members`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct MembersArgs {
    /// The group
    #[arg(default_value = DEFAULT_GROUP)]
    group: GroupName,

    /// List at most this many
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(0..=1000))]
    limit: u64,

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
    member: String,

    #[command(flatten)]
    output: OutputFlags,
}

/// Lists the members.
pub(super) async fn run(args: &MembersArgs) -> Result<(), Failure> {
    let limit = args.limit.to_string();
    let members = command(GroupAction::Members, &args.group, vec![("limit", &limit)]);
    let object = |line: &str| json_line(&ListedMember::parse(line));
    let headings = "MEMBER STATE CREDIT> HELD> RENDER> NAME ADDRESS";
    print_listed(&args.output, &members, headings, object, row).await
}

fn row(line: &str) -> Vec<String> {
    let ListedMember { member, fields } = ListedMember::parse(line);
    let MemberFields { state, credit, held, render, rendering, name, address } = fields;
    let browsers = render.map(|render| format!("{}/{render}", rendering.unwrap_or(0)));
    let label = |text: Option<String>| printable(&or_dash(text.as_ref()), TEXT_CHARS_MAX);
    let numbers = [format_count(credit), format_count(held), or_dash(browsers.as_ref())];
    [vec![member, state.to_string()], numbers.to_vec(), vec![label(name), label(address)]].concat()
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
                    address=10.0.0.7:5123 new=1";
        let shown = ["5b0c6f1e", "draining", "1,000", "7", "2/6", "web-3", "10.0.0.7:5123"];
        assert_eq!(row(line), shown);
        assert_eq!(row("5b0c6f1e state=away credit=0 held=1")[4..], ["-", "-", "-"]);
    }
}
