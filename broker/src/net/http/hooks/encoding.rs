//! How bytes are written in headers and secrets.

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde::Deserialize;

/// Senders leave out the padding, or do not.
pub(super) const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// How bytes are written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Encoding {
    #[default]
    Hex,
    Base64,
}

impl Encoding {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Hex => "hex",
            Self::Base64 => "Base64",
        }
    }

    /// How others write them.
    pub(super) fn encode(self, bytes: &[u8]) -> String {
        match self {
            Self::Hex => hex(bytes),
            Self::Base64 => BASE64.encode(bytes),
        }
    }

    /// The bytes, if that is how they are written.
    pub(super) fn decode(self, text: &str) -> Option<Vec<u8>> {
        match self {
            Self::Hex => unhex(text),
            Self::Base64 => BASE64.decode(text).ok(),
        }
    }
}

/// In lower case.
pub(super) fn hex(bytes: &[u8]) -> String {
    let digit = |half: u8| char::from_digit(half.into(), 16).expect("a half of a byte is a digit");
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

/// The bytes of hexadecimal digits, in either case.
pub fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let bytes = pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?));
    if rest.is_empty() { bytes.collect() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_read_as_they_were_written() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(unhex(&hex(&all)), Some(all.clone()));
        assert_eq!(hex(&[0, 0xaf]), "00af");
        assert_eq!(unhex("AF"), Some(vec![0xaf]));
        for wrong in ["a", "ag", " a", "+a", "ä"] {
            assert_eq!(unhex(wrong), None, "{wrong}");
        }
        assert_eq!(Encoding::Base64.decode("YQ=="), Some(vec![b'a']));
        assert_eq!(Encoding::Base64.decode("YQ"), Some(vec![b'a']));
        assert_eq!(Encoding::Base64.decode("Y_"), None);
    }
}
