//! Decodes XML or plain text. The encoding follows from the byte order mark, the `Content-Type`
//! header, the XML declaration, and the first non-ASCII bytes, in this order.

use encoding_rs::{CoderResult, Encoding, UTF_8, UTF_16BE, UTF_16LE, WINDOWS_1252};

use crate::page::{CHARSET_PRESCAN_BYTES, charset};

/// Decodes a document to UTF-8.
#[derive(Debug)]
pub(crate) struct TextDecoder(TextDecoderState);

#[derive(Debug)]
enum TextDecoderState {
    /// Before there are enough bytes to know the encoding.
    Head {
        content_type: Option<String>,
        head: Vec<u8>,
    },
    /// Declared as windows-1252, which may be UTF-8. The first non-ASCII bytes decide. They are
    /// buffered until there are enough, so that the chunks do not affect the decision.
    Undecided {
        buffered: Vec<u8>,
    },
    /// UTF-8, perhaps with an incomplete character. Invalid bytes are read as windows-1252, which
    /// they are in documents that include old texts.
    Utf8 {
        partial: Vec<u8>,
    },
    Other(Box<encoding_rs::Decoder>),
}

impl TextDecoder {
    pub(crate) fn new(content_type: Option<&str>) -> Self {
        let content_type = content_type.map(str::to_owned);
        Self(TextDecoderState::Head { content_type, head: Vec::new() })
    }

    /// Decodes these bytes and appends the text; `last` also decodes the rest.
    pub(crate) fn decode(&mut self, mut bytes: &[u8], last: bool, text: &mut String) {
        if let TextDecoderState::Head { content_type, head } = &mut self.0 {
            let wanted = CHARSET_PRESCAN_BYTES - head.len();
            let (first, rest) = bytes.split_at(wanted.min(bytes.len()));
            head.extend_from_slice(first);
            if head.len() < CHARSET_PRESCAN_BYTES && !last {
                return;
            }
            bytes = rest;
            let (head, content_type) = (std::mem::take(head), content_type.take());
            let (state, skip) = detect(&head, content_type.as_deref());
            self.0 = state;
            self.decode(&head[skip..], false, text);
        }
        if let TextDecoderState::Undecided { buffered: held } = &mut self.0 {
            if held.is_empty() {
                let ascii = Encoding::ascii_valid_up_to(bytes);
                push_utf_8(&bytes[..ascii], text);
                bytes = &bytes[ascii..];
            }
            let wanted = CHARSET_PRESCAN_BYTES - held.len();
            let (first, rest) = bytes.split_at(wanted.min(bytes.len()));
            held.extend_from_slice(first);
            if held.len() < CHARSET_PRESCAN_BYTES && !last {
                return;
            }
            bytes = rest;
            let held = std::mem::take(held);
            let wrong = std::str::from_utf8(&held).err();
            let is_utf_8 = wrong.is_none_or(|error| error.error_len().is_none());
            self.0 = if is_utf_8 {
                TextDecoderState::Utf8 { partial: Vec::new() }
            } else {
                TextDecoderState::Other(Box::new(WINDOWS_1252.new_decoder_without_bom_handling()))
            };
            self.decode(&held, false, text);
        }
        match &mut self.0 {
            TextDecoderState::Head { .. } | TextDecoderState::Undecided { .. } => {}
            TextDecoderState::Utf8 { partial: begun } => decode_utf_8(begun, bytes, last, text),
            TextDecoderState::Other(decoder) => decode_other(decoder, bytes, last, text),
        }
    }
}

/// The initial state for a document, and the length of the byte order mark.
fn detect(head: &[u8], content_type: Option<&str>) -> (TextDecoderState, usize) {
    if let Some((encoding, skip)) = Encoding::for_bom(head) {
        return (initial_state(encoding), skip);
    }
    let wide = match head {
        [b'<', 0, ..] => Some(UTF_16LE),
        [0, b'<', ..] => Some(UTF_16BE),
        _ => None,
    };
    let declared = content_type.and_then(charset::from_content_type);
    let declared = declared.or_else(|| declared_encoding(head));
    // A document that is readable as ASCII is not UTF-16, even if it declares that.
    let declared = declared.filter(|encoding| *encoding != UTF_16LE && *encoding != UTF_16BE);
    (initial_state(wide.or(declared).unwrap_or(UTF_8)), 0)
}

fn initial_state(encoding: &'static Encoding) -> TextDecoderState {
    // UTF-8 and windows-1252 are often declared for each other.
    if encoding == UTF_8 {
        TextDecoderState::Utf8 { partial: Vec::new() }
    } else if encoding == WINDOWS_1252 {
        TextDecoderState::Undecided { buffered: Vec::new() }
    } else {
        TextDecoderState::Other(Box::new(encoding.new_decoder_without_bom_handling()))
    }
}

/// The `encoding=".."` of `<?xml ..>`.
fn declared_encoding(head: &[u8]) -> Option<&'static Encoding> {
    const NAME: &[u8] = b"encoding";
    let begin = memchr::memmem::find(head, b"<?xml")?;
    let declaration = &head[begin..];
    let end = memchr::memchr(b'>', declaration).unwrap_or(declaration.len());
    let at = memchr::memmem::find(&declaration[..end], NAME)?;
    let value = declaration[at + NAME.len()..end].trim_ascii_start();
    let value = value.strip_prefix(b"=")?.trim_ascii_start();
    let (quote, value) = value.split_first()?;
    let end = memchr::memchr(*quote, value)?;
    Encoding::for_label_no_replacement(&value[..end])
}

fn decode_utf_8(begun: &mut Vec<u8>, bytes: &[u8], last: bool, text: &mut String) {
    if begun.is_empty() {
        *begun = push_utf_8(bytes, text).to_vec();
    } else {
        begun.extend_from_slice(bytes);
        let bytes = std::mem::take(begun);
        *begun = push_utf_8(&bytes, text).to_vec();
    }
    if last {
        push_windows_1252(&std::mem::take(begun), text);
    }
}

/// Appends these bytes to the text, and returns an incomplete character at the end.
fn push_utf_8<'a>(mut bytes: &'a [u8], text: &mut String) -> &'a [u8] {
    loop {
        let error = match std::str::from_utf8(bytes) {
            Ok(valid) => {
                text.push_str(valid);
                return &[];
            }
            Err(error) => error,
        };
        let (valid, rest) = bytes.split_at(error.valid_up_to());
        text.push_str(std::str::from_utf8(valid).expect("it was just found to be valid"));
        let Some(wrong) = error.error_len() else { return rest };
        push_windows_1252(&rest[..wrong], text);
        bytes = &rest[wrong..];
    }
}

fn push_windows_1252(bytes: &[u8], text: &mut String) {
    text.push_str(&WINDOWS_1252.decode_without_bom_handling(bytes).0);
}

fn decode_other(
    decoder: &mut encoding_rs::Decoder,
    mut bytes: &[u8],
    last: bool,
    text: &mut String,
) {
    loop {
        text.reserve(bytes.len() + 16);
        let (result, read, _) = decoder.decode_to_string(bytes, text, last);
        bytes = &bytes[read..];
        if result == CoderResult::InputEmpty {
            return;
        }
    }
}
