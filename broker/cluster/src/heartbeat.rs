//! What a broker says of itself to the others of its community, twice a second. It is not stored.

use std::fmt::{self, Display};
use std::net::SocketAddr;
use std::str::FromStr;

use tidings_protocol::{field, field_number};

use crate::message::Slot;

const NAME_BYTES_MAX: usize = 32;

/// The name of a community, or of a broker in it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name(String);

impl Name {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Name {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        if (1..=NAME_BYTES_MAX).contains(&text.len()) && text.bytes().all(is_allowed) {
            Ok(Self(text.to_owned()))
        } else {
            Err(format!("expected 1 to {NAME_BYTES_MAX} of the characters A-Z a-z 0-9 - _"))
        }
    }
}

impl Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A line that says that a broker lives. `Display` and `FromStr` are its form:
/// `n1 process=77 since=1699999990000 leads=9 relay=10.0.0.1:12349 applied=91 synced=88 unix-ms=1700000000000 version=0.1.0`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heartbeat {
    /// The name of the broker.
    pub name: Name,
    /// A random number of its process.
    pub process: u64,
    /// The wall clock at the start of its process, in ms.
    pub since: i64,
    /// The epoch in which it leads; 0 if it does not.
    pub leads: Slot,
    /// Where it takes connections from other brokers.
    pub relay: SocketAddr,
    /// What its copy holds.
    pub applied: Slot,
    /// What its copy has synced.
    pub synced: Slot,
    /// Its wall clock in ms.
    pub unix_ms: i64,
    /// The version of the program.
    pub version: String,
}

impl Heartbeat {
    /// Whether this broker must end, as another one with its name began before it.
    pub fn must_yield_to(&self, other: &Self) -> bool {
        let order = |it: &Self| (it.since, it.process);
        self.name == other.name && order(self) > order(other)
    }
}

impl Display for Heartbeat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, process, since, leads, relay, applied, synced, unix_ms, version } = self;
        let [Slot(leads), Slot(applied), Slot(synced)] = [leads, applied, synced];
        write!(f, "{name} process={process} since={since} leads={leads} relay={relay} ")?;
        write!(f, "applied={applied} synced={synced} unix-ms={unix_ms} version={version}")
    }
}

impl FromStr for Heartbeat {
    type Err = ();

    /// Later versions may have further fields.
    fn from_str(line: &str) -> Result<Self, ()> {
        let slot = |key| field_number(line, key).map(Slot);
        let parsed = || {
            Some(Self {
                name: line.split(' ').next()?.parse().ok()?,
                process: field_number(line, "process")?,
                since: field(line, "since")?.parse().ok()?,
                leads: slot("leads")?,
                relay: field(line, "relay")?.parse().ok()?,
                applied: slot("applied")?,
                synced: slot("synced")?,
                unix_ms: field(line, "unix-ms")?.parse().ok()?,
                version: field(line, "version")?.to_owned(),
            })
        };
        parsed().ok_or(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_line_is_read_as_it_was_written(
            name in "[A-Za-z0-9_-]{1,32}",
            numbers: [u64; 4],
            times: [i64; 2],
            relay: SocketAddr,
        ) {
            // No text has the flow of an address.
            let relay = SocketAddr::new(relay.ip(), relay.port());
            let ([process, leads, applied, synced], [since, unix_ms]) = (numbers, times);
            let heartbeat = Heartbeat {
                name: name.parse().unwrap(),
                process,
                since,
                leads: Slot(leads),
                relay,
                applied: Slot(applied),
                synced: Slot(synced),
                unix_ms,
                version: "0.1.0".to_owned(),
            };
            let line = heartbeat.to_string();
            let later = Heartbeat { since: since.saturating_add(1), ..heartbeat.clone() };
            prop_assert!(!heartbeat.must_yield_to(&heartbeat) && !heartbeat.must_yield_to(&later));
            prop_assert!(later.must_yield_to(&heartbeat) || since == i64::MAX);
            prop_assert_eq!(format!("{line} more=1").parse(), Ok(heartbeat));
            let cut = line.rsplit_once(' ').unwrap().0;
            prop_assert_eq!(cut.parse::<Heartbeat>(), Err(()));
        }
    }

    #[test]
    fn a_name_can_be_a_word_of_a_subject() {
        for wrong in ["", "a.b", "a b", "*", ">", "\u{e4}", &"a".repeat(33)] {
            assert!(wrong.parse::<Name>().is_err(), "{wrong}");
        }
    }
}
