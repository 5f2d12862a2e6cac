//! The most recently used contents, each once in memory for all deliveries that send it. Pure.

use super::store::{RowId, TopicContent};

const CACHED_TOPICS_MAX: usize = 8;

/// The newest content of some topics, by topic id, in the order of their last use.
#[derive(Debug)]
pub(super) struct ContentCache {
    entries: Vec<(RowId, TopicContent)>,
    /// Limit of all bodies together. The last content is kept even if it alone exceeds the limit.
    bytes_max: usize,
}

impl ContentCache {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { entries: Vec::new(), bytes_max }
    }

    /// Returns the content of a topic, if it has at least this version.
    pub(super) fn get(&mut self, topic_id: RowId, version: i64) -> Option<TopicContent> {
        let matches =
            |(id, content): &(RowId, TopicContent)| *id == topic_id && content.version >= version;
        let index = self.entries.iter().position(matches)?;
        let entry = self.entries.remove(index);
        let content = entry.1.clone();
        self.entries.push(entry);
        Some(content)
    }

    /// Replaces the content of a topic, and evicts the least recently used ones.
    pub(super) fn insert(&mut self, topic_id: RowId, content: TopicContent) {
        self.entries.retain(|(id, _)| *id != topic_id);
        self.entries.push((topic_id, content));
        let bytes = |entries: &[(RowId, TopicContent)]| -> usize {
            entries.iter().map(|(_, content)| content.body.len()).sum()
        };
        while self.entries.len() > CACHED_TOPICS_MAX
            || self.entries.len() > 1 && bytes(&self.entries) > self.bytes_max
        {
            self.entries.remove(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(version: i64, bytes: usize) -> TopicContent {
        TopicContent { version, content_type: None, body: vec![b'a'; bytes].into() }
    }

    fn topics(cache: &ContentCache) -> Vec<RowId> {
        cache.entries.iter().map(|(topic, _)| *topic).collect()
    }

    #[test]
    fn the_least_recently_used_content_is_evicted() {
        let mut cache = ContentCache::new(100);
        (1..=8).for_each(|topic| cache.insert(topic, content(1, 10)));
        assert!(cache.get(1, 1).is_some());
        cache.insert(9, content(1, 10));
        assert_eq!(topics(&cache), [3, 4, 5, 6, 7, 8, 1, 9]);
        cache.insert(10, content(1, 75));
        assert_eq!(topics(&cache), [1, 9, 10], "more would be over 100 bytes");
        cache.insert(11, content(1, 101));
        assert_eq!(topics(&cache), [11]);
    }

    #[test]
    fn an_older_version_is_not_returned_and_is_replaced() {
        let mut cache = ContentCache::new(100);
        cache.insert(1, content(1, 60));
        assert!(cache.get(1, 2).is_none());
        assert!(cache.get(2, 1).is_none());
        cache.insert(1, content(3, 60));
        assert_eq!(topics(&cache), [1]);
        assert_eq!(cache.get(1, 2).unwrap().version, 3);
    }
}
