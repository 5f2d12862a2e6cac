//! Text encodings of bytes in headers and secrets: hex and Base64.

use data_encoding::{BASE64, BASE64_NOPAD, HEXLOWER, HEXLOWER_PERMISSIVE};
use serde::Deserialize;

/// A text encoding of bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Encoding {
    #[default]
    Hex,
    Base64,
}

impl Encoding {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Hex => "hex",
            Self::Base64 => "Base64",
        }
    }

    /// Encodes bytes: hex in lower case, Base64 with padding.
    pub(crate) fn encode(self, bytes: &[u8]) -> String {
        match self {
            Self::Hex => HEXLOWER.encode(bytes),
            Self::Base64 => BASE64.encode(bytes),
        }
    }

    /// Decodes a text: hex in any case, Base64 with or without padding.
    pub(crate) fn decode(self, text: &str) -> Option<Vec<u8>> {
        match self {
            Self::Hex => HEXLOWER_PERMISSIVE.decode(text.as_bytes()).ok(),
            Self::Base64 => decode_base64(text),
        }
    }
}

/// Accepts full, partial and no padding, because senders differ.
fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=');
    let padding_max = (4 - digits.len() % 4) % 4;
    if text.len() - digits.len() > padding_max {
        return None;
    }
    BASE64_NOPAD.decode(digits.as_bytes()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_bytes_are_decoded() {
        let all: Vec<u8> = (0..=255).collect();
        for encoding in [Encoding::Hex, Encoding::Base64] {
            assert_eq!(encoding.decode(&encoding.encode(&all)), Some(all.clone()));
        }
        assert_eq!(Encoding::Hex.encode(&[0, 0xaf]), "00af");
        assert_eq!(Encoding::Hex.decode("AF"), Some(vec![0xaf]));
        for invalid in ["a", "ag", " a", "+a", "ä"] {
            assert_eq!(Encoding::Hex.decode(invalid), None, "{invalid}");
        }
        for text in ["YQ==", "YQ=", "YQ"] {
            assert_eq!(Encoding::Base64.decode(text), Some(vec![b'a']), "{text}");
        }
        for invalid in ["Y_", "YR==", "YQ===", "YWJj=", "Y===", "YQ==YQ==", "=", " YQ", "YQ\n"] {
            assert_eq!(Encoding::Base64.decode(invalid), None, "{invalid}");
        }
    }
}
