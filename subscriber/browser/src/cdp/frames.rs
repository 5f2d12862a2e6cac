//! Splits the bytes from a browser into messages. Each ends with a NUL byte.

use memchr::memchr;

/// Collects messages. Memory is bounded: a message over the limit is skipped.
#[derive(Debug)]
pub(super) struct Frames {
    bytes_max: usize,
    partial: Vec<u8>,
    is_skipping: bool,
}

impl Frames {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { bytes_max, partial: Vec::new(), is_skipping: false }
    }

    /// Calls `each` with every message that these bytes end.
    pub(super) fn read(&mut self, mut bytes: &[u8], mut each: impl FnMut(&[u8])) {
        while let Some(end) = memchr(0, bytes) {
            self.extend(&bytes[..end]);
            if !self.is_skipping {
                each(&self.partial);
            }
            self.is_skipping = false;
            // The buffer of a large message is not kept.
            self.partial = Vec::new();
            bytes = &bytes[end + 1..];
        }
        self.extend(bytes);
    }

    fn extend(&mut self, bytes: &[u8]) {
        if self.is_skipping || self.partial.len() + bytes.len() > self.bytes_max {
            self.is_skipping = true;
            self.partial = Vec::new();
        } else {
            self.partial.extend_from_slice(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_the_same_however_they_are_split() {
        let stream = b"{\"id\":1}\0{\"id\":22}\0too long, so skipped\0\0{}\0{\"par";
        for first in 0..stream.len() {
            for second in first..stream.len() {
                let mut frames = Frames::new(9);
                let mut messages = Vec::new();
                for part in [&stream[..first], &stream[first..second], &stream[second..]] {
                    frames.read(part, |message| messages.push(message.to_vec()));
                }
                let expected: [&[u8]; 4] = [b"{\"id\":1}", b"{\"id\":22}", b"", b"{}"];
                assert_eq!(messages, expected, "split at {first} and {second}");
                assert!(frames.partial.len() <= 9);
            }
        }
    }
}
