//! Events of feeding topics, as far as they can be read without the group.

use tidings_protocol::{CanonicalUrl, Payload, UrlError, UrlKey};

use crate::config::{GroupConfig, key_attribute};

/// A parsed event, independent of the group's state.
pub(crate) struct ParsedEvent<'a> {
    pub(super) payload: Payload<'a>,
    /// `None` in a group without keys, where a payload is any text.
    pub(super) url: Option<(CanonicalUrl<'a>, UrlKey)>,
}

impl<'a> ParsedEvent<'a> {
    pub(super) fn parse(payload: &'a str, config: &GroupConfig) -> Result<Self, &'static str> {
        let payload = Payload::parse(payload);
        if config.settings.key.is_own() {
            return Ok(Self { payload, url: None });
        }
        let target = payload.target().ok_or("not-a-url")?;
        let url = CanonicalUrl::parse(target).map_err(|error| match error {
            UrlError::TooLong => "url-too-long",
            _ => "not-an-http-url",
        })?;
        let url_key = url.url_key();
        Ok(Self { payload, url: Some((url, url_key)) })
    }

    /// Returns the identity of its schedule: that of its URL, or of its target in a group without
    /// keys. `None` if it is text, which has no attributes.
    pub(super) fn schedule_key(&self) -> Option<UrlKey> {
        let of_url = self.url.as_ref().map(|(_, url_key)| *url_key);
        of_url.or_else(|| self.payload.target().map(CanonicalUrl::key_of))
    }

    /// Returns the fingerprint of its URL, see [`UrlKey::fingerprint`].
    pub(crate) fn fingerprint(&self) -> Option<u64> {
        self.url.as_ref().map(|(_, url_key)| url_key.fingerprint())
    }

    /// Returns the text of its key.
    pub(crate) fn key(&self, config: &GroupConfig) -> Option<&str> {
        let attribute = key_attribute(&config.settings.key, &self.payload);
        attribute.or_else(|| config.key_of_url(&self.url.as_ref()?.0))
    }
}
