//! Fuzz targets of this crate, which panic if a property does not hold. For the feature `fuzzing`
//! and for tests only.

mod segments;

/// The name and the function of a target.
pub type Target = (&'static str, fn(&[u8]));

/// The targets of this crate.
pub const TARGETS: &[Target] = &[("log", segments::log)];

/// Bytes as a source of choices; zeros when they are used up.
#[derive(Debug)]
struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    /// Whether all bytes are used up.
    fn is_exhausted(&self) -> bool {
        self.0.is_empty()
    }

    /// One of 256 values.
    fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    /// One of 65,536 values.
    fn pair(&mut self) -> usize {
        usize::from(self.byte()) << 8 | usize::from(self.byte())
    }

    /// A number: small, near the largest one, or a power of two.
    fn number(&mut self) -> u64 {
        let byte = self.byte();
        match byte {
            0..0x80 => byte.into(),
            0x80..0xC0 => 1 << (byte & 63),
            0xC0.. => u64::MAX - u64::from(byte & 63),
        }
    }
}

#[cfg(test)]
#[path = "../../../../fuzz/replay.rs"]
mod replay;
