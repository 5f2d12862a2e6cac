//! Permissions as an operator writes them, against commands and events as any client may send them.

use tidings_protocol::{Command, TopicName};

use super::rights::Deed;
use super::{Access, AccessConfig, Power, Principal, Proof, Right, Rights, Way, without_tokens};

/// A user of the machine.
const USER: u32 = 7;

/// The first line is what is allowed, the second what is denied, each as words. The other lines are
/// commands, events, and lines for the log.
pub(crate) fn access(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let mut lines = text.split('\n');
    let allow = rights(lines.next().unwrap_or_default());
    let deny = rights(lines.next().unwrap_or_default());
    let permissions = Rights::new(allow.clone(), deny.clone());
    for line in lines {
        let shown = without_tokens(line);
        assert!(!has_token(&shown), "{line:?} is shown as {shown:?}");
        a_command_is_judged(&permissions, line);
        an_event_is_judged(&permissions, line);
    }
}

/// The words that are permissions. Each must be written as it is read.
fn rights(words: &str) -> Vec<Right> {
    let rights: Vec<Right> = words.split(' ').filter_map(|word| word.parse().ok()).collect();
    for right in &rights {
        assert_eq!(right.to_string().parse().as_ref(), Ok(right));
    }
    rights
}

/// Whether any part of a token is left behind its prefix.
fn has_token(shown: &str) -> bool {
    let lower = shown.to_ascii_lowercase();
    ["token=", "tdg_"].iter().any(|mark| {
        let mut behind = lower.split(mark).skip(1);
        behind.any(|rest| !rest.starts_with(".."))
    })
}

fn a_command_is_judged(rights: &Rights, line: &str) {
    let Ok(command) = Command::parse(line) else { return };
    let allowed = |rights: &Rights| {
        rights.allow(Deed::of(&command)) && rights.allow_options(&command).is_ok()
    };
    let (allow, deny) = (rights.allowed().to_vec(), rights.denied().to_vec());
    let is_unrestricted = Deed::of(&command) == Deed::Talk;
    assert!(allowed(&Rights::all()), "{line:?} is allowed with all permissions");
    if allowed(rights) {
        assert!(allowed(&Rights::new(allow, Vec::new())), "{line:?} with fewer denials");
        let all = Rights::new(vec![Right::All], deny);
        assert!(allowed(&all), "{line:?} with more permissions");
    } else {
        let denied = Rights::new(allow, [deny, vec![Right::All]].concat());
        assert!(!allowed(&denied), "{line:?} with more denials");
    }
    assert_eq!(
        allowed(&Rights::new(vec![Right::All], vec![Right::All])),
        is_unrestricted,
        "{line:?}"
    );
    assert_eq!(allowed(&Rights::default()), is_unrestricted, "{line:?}");
}

fn an_event_is_judged(rights: &Rights, payload: &str) {
    let allowed = rights.allow_event(payload).is_ok();
    let payload_of = tidings_protocol::Payload::parse(payload);
    for power in [Power::Every, Power::Prio, Power::Hub] {
        let has = |right: &Right| {
            matches!(right, Right::All) || matches!(right, Right::Power(given) if *given == power)
        };
        let given = rights.allowed().iter().any(has) && !rights.denied().iter().any(has);
        let has_attribute =
            payload_of.attributes().any(|(key, _)| Power::of_attribute(key) == Some(power));
        assert!(given || !has_attribute || !allowed, "{payload:?} has {power:?}");
    }
    let is_bound = |rights: &[Right]| rights.iter().any(|right| matches!(right, Right::Url(_)));
    assert!(
        !is_bound(rights.allowed()) || payload_of.target().is_some() || !allowed,
        "{payload:?}"
    );
    // An event that is published without a check must be one that the check would allow.
    let she = Principal::new("she", Proof::UnixUser(USER), rights.clone());
    let config = AccessConfig { principals: Some(vec![she]), ..AccessConfig::default() };
    let access = Access::new(config);
    let pass = access.enter(Way::Line, &Proof::UnixUser(USER)).expect("she is a principal");
    let topic = payload.split(' ').next().unwrap_or_default();
    let topic = TopicName::new(topic).map_or("new-url".to_owned(), |name| name.to_string());
    if access.is_unlimited(&pass, &topic) {
        let result = access.publish(&pass, &topic, payload);
        assert!(result.is_ok(), "{payload:?} on {topic}: {result:?}");
    }
}
