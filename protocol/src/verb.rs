//! The closed list of verbs.

/// Declares the list once: variant and word.
macro_rules! verbs {
    ($($variant:ident = $word:literal,)*) => {
        /// The first word of a command. The list is closed from the first version on, because the
        /// first line of a connection is compared with it (`[S3]`).
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Verb {
            $(
                #[doc = concat!("`", $word, "`")]
                $variant,
            )*
        }

        impl Verb {
            /// Every verb, in the order of PROTOCOL.md.
            pub const ALL: &[Verb] = &[$(Verb::$variant,)*];

            /// The word on the wire, in upper case.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Verb::$variant => $word,)*
                }
            }

            fn from_word(word: &[u8]) -> Option<Verb> {
                $(if word == $word.as_bytes() {
                    return Some(Verb::$variant);
                })*
                None
            }
        }
    };
}

verbs! {
    Hello = "HELLO",
    Pub = "PUB",
    Sub = "SUB",
    Seen = "SEEN",
    Unsub = "UNSUB",
    Join = "JOIN",
    Link = "LINK",
    Ack = "ACK",
    Nack = "NACK",
    Touch = "TOUCH",
    Group = "GROUP",
    Job = "JOB",
    Topic = "TOPIC",
    Explain = "EXPLAIN",
    Ping = "PING",
    Stats = "STATS",
    Help = "HELP",
    Quit = "QUIT",
}

/// The longest verb, in bytes.
const VERB_BYTES_MAX: usize = 7;

impl Verb {
    /// The verb of a line: its first word, exactly as listed, followed by a space or the end of the
    /// line. Reads eight bytes at most, which need not be valid text.
    pub fn of(line: &[u8]) -> Option<Verb> {
        let near = line.get(..line.len().min(VERB_BYTES_MAX + 1))?;
        let end = near.iter().position(|byte| *byte == b' ').unwrap_or(near.len());
        near.get(..end).and_then(Verb::from_word)
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
            assert_eq!(Verb::of(word.as_bytes()), Some(*verb));
            assert_eq!(Verb::of(format!("{word} rest").as_bytes()), Some(*verb));
            assert_eq!(Verb::of(format!("{word}\trest").as_bytes()), None);
            assert_eq!(Verb::of(format!("{word}X").as_bytes()), None);
            assert_eq!(Verb::of(format!(" {word}").as_bytes()), None);
            assert_eq!(Verb::of(word.to_lowercase().as_bytes()), None);
        }
        assert_eq!(Verb::of(b""), None);
        assert_eq!(Verb::of(b"PUB \xff"), Some(Verb::Pub));
    }
}
