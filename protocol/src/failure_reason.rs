//! Why a page was not fetched: the closed list of words for `reason=`, which
//! `subscriber/OUTCOMES.md` describes.

word_enum! {
    /// Why a page was not fetched.
    #[derive(PartialOrd, Ord)]
    #[non_exhaustive]
    pub enum FailureReason {
        /// The task contains no URL that can be requested.
        Url = "url",
        /// robots.txt does not allow it.
        Robots = "robots",
        /// The address does not belong to the public internet.
        Address = "address",
        /// The name could not be resolved.
        Dns = "dns",
        /// The connection was refused, or the server is unreachable.
        Connect = "connect",
        /// The connection took too long.
        ConnectTimeout = "connect-timeout",
        /// Too many requests to this address are in flight.
        Busy = "busy",
        /// The proxy did not connect to the server.
        Proxy = "proxy",
        /// The TLS handshake failed.
        Tls = "tls",
        /// The certificate is not trusted.
        Certificate = "certificate",
        /// The connection ended before the response.
        Reset = "reset",
        /// The server sent nothing for too long.
        Silent = "silent",
        /// The server sends too slowly.
        Slow = "slow",
        /// The time limit of the whole request was reached.
        Timeout = "timeout",
        /// The response is not HTTP.
        BadHttp = "bad-http",
        /// The headers are too many or too long.
        HeadTooLarge = "head-too-large",
        /// Too many bytes arrived before the response.
        Interim = "interim",
        /// The body ended early.
        Truncated = "truncated",
        /// The body is over the limit.
        TooLarge = "too-large",
        /// The body grows too much when it is decompressed.
        Bomb = "bomb",
        /// The body does not match its encoding, or the encoding is unknown.
        Encoding = "encoding",
        /// The target of a redirect cannot be requested.
        Redirect = "redirect",
        /// The redirects do not end.
        TooManyRedirects = "too-many-redirects",
        /// A final status without a page.
        Status = "status",
        /// A status that may change later.
        TryLater = "try-later",
        /// The body could not be stored on this machine.
        Storage = "storage",
    }
}

impl FailureReason {
    /// Whether a retry may help. A decision of the server is final; names, connections and broken
    /// bodies may be fine tomorrow.
    pub const fn is_transient(self) -> bool {
        matches!(
            self,
            Self::Dns
                | Self::Connect
                | Self::ConnectTimeout
                | Self::Busy
                | Self::Proxy
                | Self::Reset
                | Self::Silent
                | Self::Slow
                | Self::Timeout
                | Self::Truncated
                | Self::TryLater
                | Self::Storage
        )
    }

    /// Whether it says that the host did not answer: its name has no address, or there is no
    /// connection to it. A group counts these for each key.
    pub const fn is_unanswered(self) -> bool {
        matches!(self, Self::Dns | Self::Connect | Self::ConnectTimeout | Self::Tls)
    }

    /// The reason for a status that is neither a page nor a redirect.
    pub const fn of_status(status: u16) -> Self {
        match status {
            408 | 425 | 429 | 500..=599 => Self::TryLater,
            _ => Self::Status,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // PROTOCOL: T12
    #[test]
    fn a_status_that_may_change_is_retried_and_any_other_is_final() {
        for status in [408, 425, 429, 500, 502, 503, 504, 599] {
            assert!(FailureReason::of_status(status).is_transient(), "{status}");
        }
        for status in [304, 400, 401, 403, 404, 407, 409, 410, 424, 426, 428, 430, 499, 600] {
            assert!(!FailureReason::of_status(status).is_transient(), "{status}");
        }
    }
}
