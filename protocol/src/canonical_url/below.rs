//! Which URLs are below another one.

use std::borrow::Cow;

use percent_encoding::percent_decode;

use super::CanonicalUrl;

/// How many layers of percent-encoding are removed from a path before it counts as one that may
/// lead up.
const DECODINGS_MAX: usize = 3;

impl CanonicalUrl<'_> {
    /// Whether this URL is below another one: on the same server, with a path that continues the
    /// other one at the end of a segment, and that no server reads as leading up.
    pub fn is_below(&self, prefix: &CanonicalUrl<'_>) -> bool {
        let is_same_server =
            prefix.scheme() == self.scheme() && prefix.authority() == self.authority();
        let Some(rest) = self.path().strip_prefix(prefix.path()).filter(|_| is_same_server) else {
            return false;
        };
        let at_boundary = rest.is_empty() || rest.starts_with('/') || prefix.path().ends_with('/');
        at_boundary && (prefix.path() == "/" || !may_leave_prefix(self.path()))
    }
}

/// Whether some server may read a path as one that leads up. `..%2f` is one segment by the
/// standard, and two for a server that decodes the path before it splits it; some servers read
/// `..;x` as `..`. A path that is encoded many times over counts as leading up.
fn may_leave_prefix(path: &str) -> bool {
    let mut path = Cow::Borrowed(path.as_bytes());
    // Nearly all paths have neither an escape nor two dots.
    let has_dots = memchr::memchr_iter(b'.', &path).any(|at| path.get(at + 1) == Some(&b'.'));
    if !has_dots && !path.contains(&b'%') {
        return false;
    }
    for _ in 0..DECODINGS_MAX {
        let mut segments = path.split(|byte| matches!(byte, b'/' | b'\\'));
        if segments.any(|segment| segment.split(|byte| *byte == b';').next() == Some(b"..")) {
            return true;
        }
        if !path.contains(&b'%') {
            return false;
        }
        // Borrowed if the path has no escape.
        let Cow::Owned(decoded) = Cow::from(percent_decode(&path)) else { return false };
        path = Cow::Owned(decoded);
    }
    true
}
