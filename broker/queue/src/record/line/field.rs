//! Types of fields in a record's line.

use data_encoding::HEXLOWER;
use tidings_protocol::{JobName, MemberId, Outcome, Seq, TopicName};

use crate::moment::Moment;

/// A type of field. Most fields are numbers, and `Display` would take half of the time of a record.
pub(super) trait LineField {
    /// Appends the field to a line.
    fn put(&self, line: &mut String);
}

macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl LineField for $number {
            fn put(&self, line: &mut String) {
                line.push_str(itoa::Buffer::new().format(*self));
            }
        }
    )*};
}

numbers!(i16, i64, u32, u64, u128, usize);

impl LineField for char {
    fn put(&self, line: &mut String) {
        line.push(*self);
    }
}

impl LineField for str {
    fn put(&self, line: &mut String) {
        line.push_str(self);
    }
}

impl LineField for String {
    fn put(&self, line: &mut String) {
        line.push_str(self);
    }
}

impl<T: LineField + ?Sized> LineField for &T {
    fn put(&self, line: &mut String) {
        (**self).put(line);
    }
}

impl LineField for Moment {
    fn put(&self, line: &mut String) {
        self.0.put(line);
    }
}

impl LineField for Seq {
    fn put(&self, line: &mut String) {
        self.0.put(line);
    }
}

impl LineField for TopicName {
    fn put(&self, line: &mut String) {
        line.push_str(self.as_str());
    }
}

impl LineField for JobName {
    fn put(&self, line: &mut String) {
        line.push_str(self.as_str());
    }
}

impl LineField for Outcome {
    fn put(&self, line: &mut String) {
        line.push_str(self.as_str());
    }
}

impl LineField for MemberId {
    fn put(&self, line: &mut String) {
        HEXLOWER.encode_append(&self.0.to_be_bytes(), line);
    }
}
