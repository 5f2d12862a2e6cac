//! White space in texts of documents.

/// Replaces each run of white space and control characters by one space, and removes it at the
/// ends. Truncates to `bytes_max`, at a character.
pub(crate) fn fold_whitespace(text: &str, bytes_max: usize) -> String {
    let mut folded = String::new();
    for word in text.split(|c: char| c.is_whitespace() || c.is_control()) {
        if folded.len() > bytes_max {
            break;
        }
        if !word.is_empty() {
            if !folded.is_empty() {
                folded.push(' ');
            }
            folded.push_str(word);
        }
    }
    folded.truncate(folded.floor_char_boundary(bytes_max));
    folded.truncate(folded.trim_end().len());
    folded
}
