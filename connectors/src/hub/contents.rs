//! The contents that were needed last: each once in memory for all who are being sent it. Pure.

use super::store::Content;

/// Topics whose content is kept.
const TOPICS_MAX: usize = 8;

/// The newest contents of some topics, by the numbers of these. The one that was needed last is
/// last.
#[derive(Debug)]
pub(super) struct Contents {
    kept: Vec<(i64, Content)>,
    /// Of all bodies together, but for that of the last one, which is there however long it is.
    bytes_max: usize,
}

impl Contents {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { kept: Vec::new(), bytes_max }
    }

    /// That of a topic, if it is of this version or a later one.
    pub(super) fn find(&mut self, topic: i64, version: i64) -> Option<Content> {
        let is_it = |(of, content): &(i64, Content)| *of == topic && content.version >= version;
        let found = self.kept.iter().position(is_it)?;
        let found = self.kept.remove(found);
        let content = found.1.clone();
        self.kept.push(found);
        Some(content)
    }

    /// In place of an older one. Those that nobody has needed for longest go.
    pub(super) fn keep(&mut self, topic: i64, content: Content) {
        self.kept.retain(|(of, _)| *of != topic);
        self.kept.push((topic, content));
        let bytes = |kept: &[(i64, Content)]| -> usize {
            kept.iter().map(|(_, content)| content.body.len()).sum()
        };
        while self.kept.len() > TOPICS_MAX
            || self.kept.len() > 1 && bytes(&self.kept) > self.bytes_max
        {
            self.kept.remove(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(version: i64, bytes: usize) -> Content {
        Content { version, kind: None, body: vec![b'a'; bytes].into() }
    }

    fn topics(contents: &Contents) -> Vec<i64> {
        contents.kept.iter().map(|(topic, _)| *topic).collect()
    }

    #[test]
    fn what_was_needed_last_stays() {
        let mut contents = Contents::new(100);
        (1..=8).for_each(|topic| contents.keep(topic, content(1, 10)));
        assert!(contents.find(1, 1).is_some());
        contents.keep(9, content(1, 10));
        assert_eq!(topics(&contents), [3, 4, 5, 6, 7, 8, 1, 9]);
        contents.keep(10, content(1, 75));
        assert_eq!(topics(&contents), [1, 9, 10], "more would be over 100 bytes");
        contents.keep(11, content(1, 101));
        assert_eq!(topics(&contents), [11]);
    }

    #[test]
    fn an_older_content_is_not_found_and_goes() {
        let mut contents = Contents::new(100);
        contents.keep(1, content(1, 60));
        assert!(contents.find(1, 2).is_none());
        assert!(contents.find(2, 1).is_none());
        contents.keep(1, content(3, 60));
        assert_eq!(topics(&contents), [1]);
        assert_eq!(contents.find(1, 2).unwrap().version, 3);
    }
}
