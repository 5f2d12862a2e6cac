//! Tasks, which are numbered URLs of the same length, and a ledger of their state.

use std::ops::Range;

use anyhow::{Context, Result, ensure};

/// Shortest payload of a task: `http://h0000042.test/000000000007`.
pub(crate) const TASK_BYTES_MIN: usize = TASK_DIGITS.end;

/// Most keys.
pub(crate) const KEYS_MAX: u32 = 10_000_000;

/// The digits of the host in a payload, and those of the task.
const KEY_DIGITS: Range<usize> = 8..15;
const TASK_DIGITS: Range<usize> = 21..33;

/// A payload with zeros as its numbers, padded to its length.
fn template(bytes: usize) -> Vec<u8> {
    let mut payload = b"http://h0000000.test/000000000000".to_vec();
    payload.resize(bytes, b'x');
    payload
}

/// The state of all tasks of a load, numbered from 0.
pub(crate) struct TaskLedger {
    keys: u64,
    /// A payload; only its numbers change.
    template: Vec<u8>,
    /// Tasks that were written completely or in part.
    pub(crate) published: u64,
    /// Tasks that a worker received.
    pub(crate) received: u64,
    /// Acknowledgements that took effect.
    pub(crate) acked: u64,
    /// One bit per task that was received.
    received_bits: Vec<u64>,
}

impl TaskLedger {
    /// A ledger for tasks of `payload_bytes` each over `keys` keys.
    pub(crate) fn new(payload_bytes: usize, keys: u32) -> Result<Self> {
        ensure!(
            payload_bytes >= TASK_BYTES_MIN,
            "--size {payload_bytes}: a task is a URL of at least {TASK_BYTES_MIN} bytes"
        );
        ensure!((1..=KEYS_MAX).contains(&keys), "{keys} keys: expected 1 to {KEYS_MAX}");
        Ok(Self {
            keys: keys.into(),
            template: template(payload_bytes),
            published: 0,
            received: 0,
            acked: 0,
            received_bits: Vec::new(),
        })
    }

    /// A payload in which the numbers are still to be written.
    pub(crate) fn template(&self) -> &[u8] {
        &self.template
    }

    /// Writes the numbers of the next task into its payload.
    pub(crate) fn publish(&mut self, payload: &mut [u8]) {
        let task = self.published;
        write_digits(&mut payload[KEY_DIGITS], mix(task) % self.keys);
        write_digits(&mut payload[TASK_DIGITS], task);
        self.published += 1;
        if task.is_multiple_of(64) {
            self.received_bits.push(0);
        }
    }

    /// Records a task that a worker received. An error if it was never published, or received
    /// before.
    pub(crate) fn receive(&mut self, payload: &[u8]) -> Result<()> {
        let message = || format!("unexpected task {:?}", String::from_utf8_lossy(payload));
        ensure!(payload.len() == self.template.len(), message());
        let task = read_digits(&payload[TASK_DIGITS]).with_context(message)?;
        let key = read_digits(&payload[KEY_DIGITS]).with_context(message)?;
        ensure!(task < self.published && key == mix(task) % self.keys, message());
        let word = &mut self.received_bits[usize::try_from(task / 64)?];
        let bit = 1 << (task % 64);
        ensure!(*word & bit == 0, "task {task} was received twice");
        *word |= bit;
        self.received += 1;
        Ok(())
    }

    /// Records acknowledgements. An error if there are more of them than tasks were received.
    pub(crate) fn ack(&mut self, tasks: u64) -> Result<()> {
        self.acked += tasks;
        let Self { acked, received, .. } = self;
        ensure!(acked <= received, "{acked} tasks were acknowledged, but only {received} received");
        Ok(())
    }

    /// Whether every published task was received and acknowledged. Neither can happen twice.
    pub(crate) fn is_balanced(&self) -> bool {
        self.received == self.published && self.acked == self.published
    }
}

fn write_digits(digits: &mut [u8], mut number: u64) {
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + u8::try_from(number % 10).expect("a digit");
        number /= 10;
    }
}

fn read_digits(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0, |number, byte| {
        byte.is_ascii_digit().then(|| number * 10 + u64::from(byte - b'0'))
    })
}

/// A hash of the number (the last step of `splitmix64`). Keys come in a random order that is the
/// same in every run, and some of them repeat soon, as in practice.
const fn mix(task: u64) -> u64 {
    let mut mixed = task.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ledger of `tasks` tasks, and their payloads.
    fn ledger_with_tasks(tasks: usize) -> (TaskLedger, Vec<Vec<u8>>) {
        let mut ledger = TaskLedger::new(40, 10_000).unwrap();
        let mut publish = |_| {
            let mut payload = ledger.template().to_vec();
            ledger.publish(&mut payload);
            payload
        };
        let payloads = (0..tasks).map(&mut publish).collect();
        (ledger, payloads)
    }

    #[test]
    fn a_task_is_a_url_with_its_number() {
        let (_, payloads) = ledger_with_tasks(8);
        assert_eq!(payloads[0], b"http://h0000000.test/000000000000xxxxxxx");
        let last = str::from_utf8(&payloads[7]).unwrap();
        assert_eq!(&last[15..], ".test/000000000007xxxxxxx");
        assert!(last.starts_with("http://h000"), "{last}");
    }

    #[test]
    fn the_ledger_balances_in_any_order() {
        let seed = fastrand::u64(..);
        let (mut ledger, mut payloads) = ledger_with_tasks(1000);
        fastrand::Rng::with_seed(seed).shuffle(&mut payloads);
        for payload in &payloads {
            assert!(!ledger.is_balanced(), "seed {seed}");
            ledger.receive(payload).unwrap();
            ledger.ack(1).unwrap();
        }
        assert!(ledger.is_balanced(), "seed {seed}");
    }

    #[test]
    fn duplicate_and_unknown_tasks_are_errors() {
        let (mut ledger, payloads) = ledger_with_tasks(2);
        ledger.receive(&payloads[1]).unwrap();
        assert_eq!(
            ledger.receive(&payloads[1]).unwrap_err().to_string(),
            "task 1 was received twice"
        );
        let mut unknown = payloads[1].clone();
        unknown[TASK_DIGITS.end - 1] = b'2';
        let mut other_key = payloads[0].clone();
        other_key[KEY_DIGITS.start] = b'9';
        for payload in [&unknown[..], &other_key, &payloads[0][..39], b""] {
            assert!(
                ledger.receive(payload).unwrap_err().to_string().starts_with("unexpected task")
            );
        }
        assert!(!ledger.is_balanced());
    }

    #[test]
    fn more_acknowledgements_than_tasks_are_an_error() {
        let (mut ledger, payloads) = ledger_with_tasks(1);
        assert!(ledger.ack(1).is_err());
        ledger.acked = 0;
        ledger.receive(&payloads[0]).unwrap();
        ledger.ack(1).unwrap();
        assert!(ledger.ack(1).is_err());
    }

    #[test]
    fn invalid_sizes_and_keys_are_rejected() {
        assert!(TaskLedger::new(TASK_BYTES_MIN, KEYS_MAX).is_ok());
        assert!(TaskLedger::new(TASK_BYTES_MIN - 1, 1).is_err());
        assert!(TaskLedger::new(128, 0).is_err() && TaskLedger::new(128, KEYS_MAX + 1).is_err());
    }

    #[test]
    fn keys_are_distributed_evenly() {
        let mut tasks_of = vec![0_u32; 100];
        for task in 0..10_000 {
            tasks_of[usize::try_from(mix(task) % 100).unwrap()] += 1;
        }
        let (fewest, most) = (tasks_of.iter().min().unwrap(), tasks_of.iter().max().unwrap());
        assert!(*fewest > 50 && *most < 150, "{fewest} to {most}");
    }
}
