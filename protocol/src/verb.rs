//! The closed list of verbs.

word_enum! {
    /// The first word of a command, in the order of the specification. The list is closed from the first
    /// version on, because the first line of a connection is compared with it (`[S3]`).
    pub enum Verb {
        /// `HELLO`
        Hello = "HELLO",
        /// `PUB`
        Pub = "PUB",
        /// `SUB`
        Sub = "SUB",
        /// `SEEN`
        Seen = "SEEN",
        /// `UNSUB`
        Unsub = "UNSUB",
        /// `JOIN`
        Join = "JOIN",
        /// `LINK`
        Link = "LINK",
        /// `ACK`
        Ack = "ACK",
        /// `NACK`
        Nack = "NACK",
        /// `TOUCH`
        Touch = "TOUCH",
        /// `GROUP`
        Group = "GROUP",
        /// `JOB`
        Job = "JOB",
        /// `TOPIC`
        Topic = "TOPIC",
        /// `EXPLAIN`
        Explain = "EXPLAIN",
        /// `PING`
        Ping = "PING",
        /// `STATS`
        Stats = "STATS",
        /// `HELP`
        Help = "HELP",
        /// `QUIT`
        Quit = "QUIT",
    }
}

/// The longest verb, in bytes.
const VERB_BYTES_MAX: usize = 7;

impl Verb {
    /// The verb of a line: its first word, exactly as listed, followed by a space or the end of the
    /// line. Reads eight bytes at most, which need not be valid text.
    pub fn of(line: &[u8]) -> Option<Verb> {
        let near = line.get(..line.len().min(VERB_BYTES_MAX + 1))?;
        let end = near.iter().position(|byte| *byte == b' ').unwrap_or(near.len());
        Verb::from_word(str::from_utf8(near.get(..end)?).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verb_is_the_whole_first_word_in_upper_case() {
        for verb in Verb::ALL {
            let word = verb.as_str();
            assert!(word.len() <= VERB_BYTES_MAX);
            assert_eq!(Verb::of(word.as_bytes()), Some(verb));
            assert_eq!(Verb::of(format!("{word} rest").as_bytes()), Some(verb));
            assert_eq!(Verb::of(format!("{word}\trest").as_bytes()), None);
            assert_eq!(Verb::of(format!("{word}X").as_bytes()), None);
            assert_eq!(Verb::of(format!(" {word}").as_bytes()), None);
            assert_eq!(Verb::of(word.to_lowercase().as_bytes()), None);
        }
        assert_eq!(Verb::of(b""), None);
        assert_eq!(Verb::of(b"PUB \xff"), Some(Verb::Pub));
    }
}
