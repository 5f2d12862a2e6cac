//! `tidings group members`, `drain` and `undrain`: the workers of a group.

use clap::Args;
use tidings_protocol::status::{DrainStatus, ListedMember, MemberFields, MemberState};
use tidings_protocol::{DEFAULT_GROUP, GroupAction, GroupName};

use super::tasks::{duration, or_dash};
use super::{NAME, command};
use crate::client::lists::{Columns, ListFlags, print_listed};
use crate::client::manage::{BrokerClient, OutputFlags, json_line};
use crate::flags::one_word;
use crate::terminal::failure::Failure;
use crate::terminal::output::{Console, format_count, plural, printable};

const EXAMPLES: &str = "\
Examples:
  tidings group members                      the crawlers, and how many tasks each of them holds
  tidings group drain crawlers 5b0c6f1e      the first one gets no further tasks
  tidings group tasks --state processing     the tasks that it still has

DONE, FAILED and LOST count since the worker joined. RATE is how many tasks it did per second, over
about the last 10 s. HEARD is the time since it sent something. RENDER is the number of pages
that its browsers render, and how many they may at once; 6/6+3: three more wait for a browser. For a
worker that does not report that, it counts its tasks that the broker knows to need a browser.

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
        row: |line: &str| row(&ListedMember::parse(line)),
    };
    print_listed(NAME, &members, &args.list, &args.output, columns).await
}

/// A member as a row.
pub(crate) fn row(member: &ListedMember) -> Vec<String> {
    let MemberFields { state, credit, held, render, name, address, .. } = &member.fields;
    let browsers = render
        .map(|render| format!("{}/{render}{}", rendering(&member.fields), queued(&member.fields)));
    let label = |text: &Option<String>| printable(&or_dash(text.as_ref()), TEXT_CHARS_MAX);
    // A count of 0 is left out.
    let count = |count: Option<u64>| format_count(count.unwrap_or(0));
    vec![
        member.member.clone(),
        state.as_str().to_owned(),
        format_count(*credit),
        format_count(*held),
        or_dash(browsers.as_ref()),
        count(member.fields.done),
        count(member.fields.failed),
        count(member.fields.lost),
        member.fields.rate.unwrap_or_default().to_string(),
        member.fields.heard_ms.map_or("-".to_owned(), duration),
        label(name),
        label(address),
    ]
}

/// How many pages a member renders; `-` if that is unknown.
fn rendering(member: &MemberFields) -> String {
    // A worker with a rule of its own renders tasks of which the broker does not know it.
    let known = member.rendering.filter(|tasks| *tasks > 0 || member.held == 0);
    or_dash(member.browsers.pages.or(known).map(|pages| pages.to_string()).as_ref())
}

/// How many pages wait for its browsers.
fn queued(member: &MemberFields) -> String {
    let waiting = member.browsers.waiting.filter(|pages| *pages > 0);
    waiting.map_or(String::new(), |pages| format!("+{pages}"))
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
        let row = |line: &str| row(&ListedMember::parse(line));
        assert_eq!(row(line)[..5], ["5b0c6f1e", "draining", "1,000", "7", "2/6"]);
        let shown = ["5,123", "4", "0", "12.5", "4 s", "web-3", "10.0.0.7:5123"];
        assert_eq!(row(line)[5..], shown);
        let cases = [
            (0, "", "0/3"),
            (40, "", "-/3"),
            (40, "browser-pages=2 browser-waiting=0", "2/3"),
            (40, "browser-pages=3 browser-waiting=37", "3/3+37"),
        ];
        for (held, report, rendered) in cases {
            let line = format!(
                "5b0c6f1e state=active credit=40 held={held} render=3 rendering=0 {report}"
            );
            assert_eq!(row(&line)[4], rendered);
        }
        let away = row("5b0c6f1e state=away credit=0 held=1");
        assert_eq!(away[4..], ["-", "0", "0", "0", "0.0", "-", "-", "-"]);
    }
}
