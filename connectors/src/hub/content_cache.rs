//! The most recently used contents, each once in memory for all deliveries that send it. Pure.

use super::store::TopicContent;

/// Limit of cached topics.
const CACHED_TOPICS_MAX: usize = 8;

/// The newest content of some topics, by topic id, in the order of their last use.
#[derive(Debug)]
pub(super) struct ContentCache {
    entries: Vec<(i64, TopicContent)>,
    /// Limit of all bodies together. The last content is kept even if it alone exceeds the limit.
    bytes_max: usize,
}

impl ContentCache {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { entries: Vec::new(), bytes_max }
    }

    /// Returns the content of a topic, if it has at least this version.
    pub(super) fn get(&mut self, topic: i64, version: i64) -> Option<TopicContent> {
        let is_it =
            |(of, content): &(i64, TopicContent)| *of == topic && content.version >= version;
        let found = self.entries.iter().position(is_it)?;
        let found = self.entries.remove(found);
        let content = found.1.clone();
        self.entries.push(found);
        Some(content)
    }

    /// Replaces the content of a topic, and evicts the least recently used ones.
    pub(super) fn insert(&mut self, topic: i64, content: TopicContent) {
        self.entries.retain(|(of, _)| *of != topic);
        self.entries.push((topic, content));
        let bytes = |kept: &[(i64, TopicContent)]| -> usize {
            kept.iter().map(|(_, content)| content.body.len()).sum()
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

    fn topics(contents: &ContentCache) -> Vec<i64> {
        contents.entries.iter().map(|(topic, _)| *topic).collect()
    }

    #[test]
    fn the_least_recently_used_content_is_evicted() {
        let mut contents = ContentCache::new(100);
        (1..=8).for_each(|topic| contents.insert(topic, content(1, 10)));
        assert!(contents.get(1, 1).is_some());
        contents.insert(9, content(1, 10));
        assert_eq!(topics(&contents), [3, 4, 5, 6, 7, 8, 1, 9]);
        contents.insert(10, content(1, 75));
        assert_eq!(topics(&contents), [1, 9, 10], "more would be over 100 bytes");
        contents.insert(11, content(1, 101));
        assert_eq!(topics(&contents), [11]);
    }

    #[test]
    fn an_older_version_is_not_returned_and_is_replaced() {
        let mut contents = ContentCache::new(100);
        contents.insert(1, content(1, 60));
        assert!(contents.get(1, 2).is_none());
        assert!(contents.get(2, 1).is_none());
        contents.insert(1, content(3, 60));
        assert_eq!(topics(&contents), [1]);
        assert_eq!(contents.get(1, 2).unwrap().version, 3);
    }
}
