//! `tidings host`: rules of an operator for hosts.

mod name;
mod set;
mod show;

use clap::{Args, Subcommand};
use tidings_protocol::status::{ListedRule, RuleFields, RuleStatus};
use tidings_protocol::{GroupAction, HostPattern};

use self::name::parse_host;
use self::set::{BlockArgs, SlowArgs};
use super::group::command;
use super::group::tasks::{duration, or_dash};
use crate::client::lists::{Columns, ListFlags, print_listed};
use crate::client::manage::{BrokerClient, GroupFlag, OutputFlags, json_line, spaced};
use crate::terminal::failure::Failure;
use crate::terminal::output::{Console, printable};

const EXAMPLES: &str = "\
Examples:
  tidings host block example.org                        no request to it from now on
  tidings host block '*.example.org' --note abuse-2381  the same for every name below it, too
  tidings host pause example.org --for 2h               its URLs wait for two hours
  tidings host slow example.org --delay 30s             at least 30 seconds between two requests
  tidings host ls                                       all rules
  tidings host show example.org                         its rule, and why its URLs wait
  tidings host clear example.org                        remove its rule

A host has no port; a rule covers all ports. Of several rules that match a host, the longest one
counts: example.org before '*.example.org' before '*.org'. A rule is one of block, pause and slow;
a new one replaces it. Rules hold for all jobs and crawlers of the group, also after a restart.

Exit codes: 0 success; 1 rejected or failed; 2 wrong usage; 130 interrupted while waiting.";

/// The name of the connection, as the broker shows it.
const NAME: &str = "tidings-host";

/// The columns of a rule.
const HEADINGS: &str = "HOST RULE ENDS NOTE";

/// The longest host and note in a table, in characters.
const TEXT_CHARS_MAX: usize = 200;

/// The subcommands of `tidings host`.
#[derive(Debug, Subcommand)]
#[command(after_help = EXAMPLES)]
pub(crate) enum Host {
    /// Send no requests to a host; its waiting URLs and new ones end as blocked
    #[command(after_help = set::BLOCK_EXAMPLES)]
    Block(BlockArgs),
    /// Send no requests to a host for a while; its URLs wait
    #[command(after_help = set::PAUSE_EXAMPLES)]
    Pause(BlockArgs),
    /// Set the delay of a host, and how many requests it gets at once
    Slow(SlowArgs),
    /// List all rules
    #[command(alias = "list")]
    Ls(LsArgs),
    /// Show the rule of a host, and why its URLs wait
    Show(HostArgs),
    /// Remove the rule of a host
    Clear(HostArgs),
}

/// The flags of `tidings host ls`.
#[derive(Debug, Args)]
pub(crate) struct LsArgs {
    #[command(flatten)]
    list: ListFlags,

    #[command(flatten)]
    group: GroupFlag,

    #[command(flatten)]
    output: OutputFlags,
}

/// The flags of subcommands for one host.
#[derive(Debug, Args)]
pub(crate) struct HostArgs {
    /// The host, such as example.org; '*.example.org' is example.org and every name below it
    #[arg(value_name = "HOST", value_parser = parse_host)]
    host: HostPattern,

    #[command(flatten)]
    group: GroupFlag,

    #[command(flatten)]
    output: OutputFlags,
}

/// Runs the subcommand.
pub(crate) async fn run(host: Host) -> Result<(), Failure> {
    match host {
        Host::Block(args) => set::block(&args).await,
        Host::Pause(args) => set::pause(&args).await,
        Host::Slow(args) => set::slow(&args).await,
        Host::Ls(args) => ls(&args).await,
        Host::Show(args) => show::run(&args).await,
        Host::Clear(args) => clear(&args).await,
    }
}

async fn ls(args: &LsArgs) -> Result<(), Failure> {
    let rules = command(GroupAction::Rules, &args.group.group, Vec::new());
    let columns = Columns {
        object: |line: &str| json_line(&ListedRule::parse(line)),
        headings: HEADINGS,
        row: |line: &str| row(ListedRule::parse(line)),
    };
    print_listed(NAME, &rules, &args.list, &args.output, columns).await
}

fn row(ListedRule { key, fields }: ListedRule) -> Vec<String> {
    let ends = fields.left.map_or("-".to_owned(), |left| format!("in {}", duration(left.0)));
    let note = spaced(&or_dash(fields.note.as_ref()));
    vec![printable(&key, TEXT_CHARS_MAX), in_words(&fields), ends, printable(&note, TEXT_CHARS_MAX)]
}

/// What a rule does, without its end.
fn in_words(rule: &RuleFields) -> String {
    let word = |is_set: Option<bool>, word: &str| is_set?.then(|| word.to_owned());
    let delay = rule.delay.map(|delay| format!("delay={delay}"));
    let parallel = rule.parallel.map(|parallel| format!("parallel={parallel}"));
    let words = [word(rule.block, "block"), word(rule.pause, "pause"), delay, parallel];
    words.into_iter().flatten().collect::<Vec<_>>().join(" ")
}

async fn clear(args: &HostArgs) -> Result<(), Failure> {
    let host = args.host.to_string();
    let unrule = command(GroupAction::Unrule, &args.group.group, vec![("key", &host)]);
    let answer = BrokerClient::connect(&args.output.broker, NAME).await?.request(&unrule).await?;
    let rule = RuleStatus::parse(&answer.ok);
    let text = format!("cleared {}", rule.key);
    Console::new().line(&if args.output.json { json_line(&rule) } else { text })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_a_row() {
        let row = |line| row(ListedRule::parse(line));
        let block = row("*.a.example block=yes left=7199990ms note=asked_by_owner new=1");
        assert_eq!(block, ["*.a.example", "block", "in 119 min", "asked by owner"]);
        let slow = row("b.example delay=30s parallel=2");
        assert_eq!(slow, ["b.example", "delay=30s parallel=2", "-", "-"]);
        assert_eq!(row("b.example pause=yes")[1], "pause");
    }
}
