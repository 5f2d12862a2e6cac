//! Permissions as an operator writes them, against commands and events as any client may send them.

use tidings_protocol::{Command, TopicName};

use super::permissions::Action;
use super::{
    Access, AccessConfig, Credential, Permission, PermissionSet, Principal, PrivilegedAttribute,
    Transport, redact_tokens,
};

/// A user of the machine.
const USER: u32 = 7;

/// The first line is what is allowed, the second what is denied, each as words. The other lines are
/// commands, events, and lines for the log.
pub(crate) fn access(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let mut lines = text.split('\n');
    let allow = rights(lines.next().unwrap_or_default());
    let deny = rights(lines.next().unwrap_or_default());
    let permissions = PermissionSet::new(allow.clone(), deny.clone());
    for line in lines {
        let shown = redact_tokens(line);
        assert!(!has_token(&shown), "{line:?} is shown as {shown:?}");
        check_command(&permissions, line);
        check_event(&permissions, line);
    }
}

/// The words that are permissions. Each must be written as it is read.
fn rights(words: &str) -> Vec<Permission> {
    let rights: Vec<Permission> = words.split(' ').filter_map(|word| word.parse().ok()).collect();
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

fn check_command(rights: &PermissionSet, line: &str) {
    let Ok(command) = Command::parse(line) else { return };
    let allowed = |rights: &PermissionSet| {
        rights.allows(Action::of(&command)) && rights.check_options(&command).is_ok()
    };
    let (allow, deny) = (rights.allowed().to_vec(), rights.denied().to_vec());
    let is_unrestricted = Action::of(&command) == Action::Unrestricted;
    assert!(allowed(&PermissionSet::all()), "{line:?} is allowed with all permissions");
    if allowed(rights) {
        assert!(allowed(&PermissionSet::new(allow, Vec::new())), "{line:?} with fewer denials");
        let all = PermissionSet::new(vec![Permission::All], deny);
        assert!(allowed(&all), "{line:?} with more permissions");
    } else {
        let denied = PermissionSet::new(allow, [deny, vec![Permission::All]].concat());
        assert!(!allowed(&denied), "{line:?} with more denials");
    }
    assert_eq!(
        allowed(&PermissionSet::new(vec![Permission::All], vec![Permission::All])),
        is_unrestricted,
        "{line:?}"
    );
    assert_eq!(allowed(&PermissionSet::default()), is_unrestricted, "{line:?}");
}

fn check_event(rights: &PermissionSet, payload: &str) {
    let allowed = rights.check_event(payload).is_ok();
    let payload_of = tidings_protocol::Payload::parse(payload);
    for power in [PrivilegedAttribute::Every, PrivilegedAttribute::Prio, PrivilegedAttribute::Hub] {
        let has = |right: &Permission| {
            matches!(right, Permission::All)
                || matches!(right, Permission::Attribute(given) if *given == power)
        };
        let given = rights.allowed().iter().any(has) && !rights.denied().iter().any(has);
        let has_attribute = payload_of
            .attributes()
            .any(|(key, _)| PrivilegedAttribute::of_attribute(key) == Some(power));
        assert!(given || !has_attribute || !allowed, "{payload:?} has {power:?}");
    }
    let is_bound =
        |rights: &[Permission]| rights.iter().any(|right| matches!(right, Permission::Url(_)));
    assert!(
        !is_bound(rights.allowed()) || payload_of.target().is_some() || !allowed,
        "{payload:?}"
    );
    // An event that is published without a check must be one that the check would allow.
    let she = Principal::new("she", Credential::UnixUser(USER), rights.clone());
    let config = AccessConfig { principals: Some(vec![she]), ..AccessConfig::default() };
    let access = Access::new(config);
    let pass =
        access.identify(Transport::Line, &Credential::UnixUser(USER)).expect("she is a principal");
    let topic = payload.split(' ').next().unwrap_or_default();
    let topic = TopicName::new(topic).map_or("new-url".to_owned(), |name| name.to_string());
    if access.is_unlimited(&pass, &topic) {
        let result = access.check_publish(&pass, &topic, payload);
        assert!(result.is_ok(), "{payload:?} on {topic}: {result:?}");
    }
}
