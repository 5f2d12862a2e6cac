//! Which topics may come into being.

use std::sync::Arc;

use tidings_protocol::{Code, ProtocolError, TopicName};

use super::{Index, Topics};
use crate::topic::Topic;

/// Which part of all topics those may bring into being who only publish: one half. Nobody knows who they are, and a
/// topic stays; all others need some, too.
const PUBLISHERS_PART: usize = 2;

impl Topics {
    /// The topic of that name, which comes into being if it is new.
    ///
    /// Refused with [`Code::Limit`] if there are too many, and with [`Code::Busy`] while one of the
    /// name is being deleted.
    pub fn open(&self, name: &TopicName) -> Result<Arc<Topic>, ProtocolError> {
        if let Some(topic) = self.find(name.as_str()) {
            return Ok(topic);
        }
        let index = &mut *self.index.write();
        self.admit(index, name)?;
        Ok(self.open_unbounded(index, name, None))
    }

    /// The same for who comes by a way that only publishes: a new one only while there are fewer than half as many as
    /// there may be (`[Z10]`).
    pub(crate) fn open_to_publish(&self, name: &TopicName) -> Result<Arc<Topic>, ProtocolError> {
        if let Some(topic) = self.find(name.as_str()) {
            return Ok(topic);
        }
        let index = &mut *self.index.write();
        self.admit(index, name)?;
        let (count, part) = (index.by_name.len(), self.count_max / PUBLISHERS_PART);
        if count >= part && !index.by_name.contains_key(name) {
            let text = format!(
                "there are {count} topics: who can only publish brings no new one into being from {part} on"
            );
            return Err(ProtocolError::new(Code::Limit, text));
        }
        Ok(self.open_unbounded(index, name, None))
    }

    pub(super) fn admit(&self, index: &Index, name: &TopicName) -> Result<(), ProtocolError> {
        if index.closed {
            return Err(ProtocolError::new(Code::Closing, "the broker stops"));
        }
        if index.leaving.contains(name) {
            let text = format!("topic {name} is just being deleted; try again");
            return Err(ProtocolError::new(Code::Busy, text));
        }
        if index.by_name.len() >= self.count_max && !index.by_name.contains_key(name) {
            return Err(ProtocolError::new(
                Code::Limit,
                format!("there are {} topics, and no more are allowed", self.count_max),
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{clock::Clock, config::Limits};

    // PROTOCOL: Z10
    #[test]
    fn who_only_publishes_leaves_half_of_the_topics_to_others() {
        let limits = Limits { topics_max: 10, ..Limits::default() };
        let topics = Topics::in_memory(&limits, Clock::new());
        let name = |name: &str| name.parse::<TopicName>().unwrap();
        // Three are always there.
        for fourth_and_fifth in ["a", "b"] {
            topics.open_to_publish(&name(fourth_and_fifth)).unwrap();
        }
        let refusal = topics.open_to_publish(&name("c")).unwrap_err();
        assert_eq!(refusal.code, Code::Limit);
        assert!(topics.find("c").is_none());
        topics.open_to_publish(&name("a")).expect("it is there already");
        topics.open(&name("c")).unwrap();
        topics.open_to_publish(&name("c")).expect("somebody else has made it");
    }
}
