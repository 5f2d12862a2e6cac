//! Limits on the creation of topics.

use std::sync::Arc;

use tidings_protocol::{Code, ProtocolError, TopicName};

use super::{TopicIndex, Topics};
use crate::topic::Topic;

/// Transports that only publish may create topics up to this fraction of the limit: one half. Their
/// clients are anonymous and a topic stays, so the rest is reserved for others.
const PUBLISHERS_DIVISOR: usize = 2;

impl Topics {
    /// Returns the topic of this name, and creates it if it does not exist.
    ///
    /// Fails with [`Code::Limit`] if there are too many topics, and with [`Code::Busy`] while a
    /// topic of this name is being deleted.
    pub fn open(&self, name: &TopicName) -> Result<Arc<Topic>, ProtocolError> {
        self.open_for(name, false)
    }

    /// As [`open`](Self::open). A transport that only publishes may create a topic only while fewer
    /// than half of the allowed topics exist (`[Z10]`).
    pub(crate) fn open_for(
        &self,
        name: &TopicName,
        is_publish_only: bool,
    ) -> Result<Arc<Topic>, ProtocolError> {
        if let Some(topic) = self.find(name.as_str()) {
            return Ok(topic);
        }
        let index = &mut *self.index.write();
        self.check_new(index, name)?;
        let (count, part) = (index.by_name.len(), self.count_max / PUBLISHERS_DIVISOR);
        if is_publish_only && count >= part && !index.by_name.contains_key(name) {
            let text = format!(
                "there are {count} topics: a client that can only publish may create one only below {part}"
            );
            return Err(ProtocolError::new(Code::Limit, text));
        }
        Ok(self.open_unchecked(index, name, None))
    }

    pub(super) fn check_new(
        &self,
        index: &TopicIndex,
        name: &TopicName,
    ) -> Result<(), ProtocolError> {
        if index.closed {
            return Err(ProtocolError::new(Code::Closing, "the broker stops"));
        }
        if index.deleting.contains(name) {
            let text = format!("topic {name} is being deleted; try again");
            return Err(ProtocolError::new(Code::Busy, text));
        }
        if index.by_name.len() >= self.count_max && !index.by_name.contains_key(name) {
            let max = self.count_max;
            let text =
                format!("there are already {max} topics, which is the limit; delete one first");
            return Err(ProtocolError::new(Code::Limit, text));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::limits::Limits;

    // PROTOCOL: Z10
    #[test]
    fn publish_only_transports_create_half_of_the_topics_at_most() {
        let limits = Limits { topics_max: 10, ..Limits::default() };
        let topics = Topics::in_memory(&limits, Clock::new());
        let name = |name: &str| name.parse::<TopicName>().unwrap();
        // Four topics always exist.
        topics.open_for(&name("a"), true).unwrap();
        let refusal = topics.open_for(&name("c"), true).unwrap_err();
        assert_eq!(refusal.code, Code::Limit);
        assert!(topics.find("c").is_none());
        topics.open_for(&name("a"), true).expect("the topic exists");
        topics.open(&name("c")).unwrap();
        topics.open_for(&name("c"), true).expect("another client has created it");
    }
}
