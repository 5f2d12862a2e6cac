//! `tidings host show`: the rule that counts for a host, and why its URLs wait.

use serde_json::json;
use tidings_client::ClientError;
use tidings_protocol::status::{ListEnd, ListedRule};
use tidings_protocol::{Code, Command, GroupAction};

use super::{HEADINGS, HostArgs, NAME, row};
use crate::client::manage::{self, BrokerClient, GroupFlag, print_table};
use crate::commands::group::command;
use crate::terminal::failure::Failure;
use crate::terminal::output::{Console, readable_line};

/// Fails if the broker knows neither a rule for the host nor the host.
pub(super) async fn run(args: &HostArgs) -> Result<(), Failure> {
    let HostArgs { host, group, output } = args;
    let host = &host.to_string();
    let broker = BrokerClient::connect(&output.broker, NAME).await?;
    let rule = rule_of(&broker, group, host).await?;
    let explain = Command::Explain { what: host, group: Some(group.group.clone()) };
    let reasons = match broker.client.request(&explain).await {
        Ok(answer) => [answer.more, vec![answer.ok]].concat(),
        Err(ClientError::Refused(error)) if error.code == Code::NotFound && rule.is_some() => {
            Vec::new()
        }
        Err(error) => return Err(broker.failure(error)),
    };
    let mut console = Console::new();
    if output.json {
        let rule = rule.map(|rule| manage::json(&rule));
        let object = json!({ "host": host, "rule": rule, "explain": reasons });
        return console.line(&object.to_string());
    }
    match rule {
        Some(rule) => print_table(&mut console, HEADINGS, [row(rule)])?,
        None => console.line(&format!("no rule for {host}"))?,
    }
    reasons.iter().try_for_each(|line| console.line(&readable_line(line)))
}

/// The rule that counts for the host.
async fn rule_of(
    broker: &BrokerClient<'_>,
    group: &GroupFlag,
    host: &str,
) -> Result<Option<ListedRule>, Failure> {
    let (mut rules, mut after) = (Vec::new(), Some(0));
    while let Some(begin) = after {
        let begin = begin.to_string();
        let range = vec![("after", begin.as_str()), ("limit", "1000")];
        let part = broker.request(&command(GroupAction::Rules, &group.group, range)).await?;
        let matching = part.more.iter().map(|line| ListedRule::parse(line));
        rules.extend(matching.filter(|rule| matches(&rule.key, host)));
        after = ListEnd::parse(&part.ok).next;
    }
    Ok(rules.into_iter().max_by_key(|rule| (rule.key == host, rule.key.len())))
}

/// Whether a rule for this key is also one for a host, or for another key.
fn matches(key: &str, host: &str) -> bool {
    let is_below = |name: &str| {
        let above = host.strip_suffix(name);
        above.is_some_and(|above| above.is_empty() || above.ends_with('.'))
    };
    key == host || key.strip_prefix("*.").is_some_and(is_below)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_is_the_name_and_every_name_below_it() {
        for host in ["a.test", "b.a.test", "c.b.a.test", "*.a.test", "*.b.a.test"] {
            assert!(matches("*.a.test", host), "{host}");
        }
        for host in ["ba.test", "test", "a.test.org", "*.test"] {
            assert!(!matches("*.a.test", host), "{host}");
        }
        assert!(matches("a.test", "a.test") && !matches("a.test", "b.a.test"));
    }
}
