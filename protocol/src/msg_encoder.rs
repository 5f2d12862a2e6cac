//! Encodes runs of `MSG` lines without formatting each number.

use bytes::BufMut;

use crate::Seq;
use crate::wire::put_number;

/// Encodes `MSG` lines of one topic with consecutive seqs.
#[derive(Debug)]
pub struct MsgEncoder {
    /// `MSG <topic> <seq> `, for the next line.
    head: Vec<u8>,
    /// Where the number begins.
    digits_start: usize,
}

impl MsgEncoder {
    /// The first line has the number `first`.
    pub fn new(topic: &str, first: Seq) -> Self {
        let mut head = Vec::with_capacity(topic.len() + 26);
        head.extend_from_slice(b"MSG ");
        head.extend_from_slice(topic.as_bytes());
        head.push(b' ');
        let digits_start = head.len();
        put_number(first.0, &mut head);
        head.push(b' ');
        Self { head, digits_start }
    }

    /// Appends the next line.
    pub fn encode(&mut self, payload: &str, out: &mut impl BufMut) {
        out.put_slice(&self.head);
        out.put_slice(payload.as_bytes());
        out.put_slice(b"\r\n");
        self.increment();
    }

    /// Adds one to the decimal number, with carries.
    fn increment(&mut self) {
        // The last byte is a space.
        for digit in self.head.iter_mut().skip(self.digits_start).rev().skip(1) {
            if *digit < b'9' {
                *digit += 1;
                return;
            }
            *digit = b'0';
        }
        self.head.insert(self.digits_start, b'1');
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;

    use super::*;
    use crate::encode_msg;

    #[test]
    fn consecutive_lines_have_consecutive_seqs() {
        for first in [1_u64, 8, 99, 999_998] {
            let mut encoder = MsgEncoder::new("t", Seq(first));
            let (mut counted, mut expected) = (BytesMut::new(), BytesMut::new());
            for seq in first..first + 120 {
                encoder.encode("x y", &mut counted);
                encode_msg("t", Seq(seq), "x y", &mut expected);
            }
            assert_eq!(counted, expected);
        }
    }
}
