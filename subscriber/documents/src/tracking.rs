//! Tracking parameters: they identify the visitor of a link, not the page. A crawler removes them
//! from the links that it finds, also from those of feeds, so that a page is not fetched once for each newsletter that links
//! to it. A published URL keeps them.
//!
//! A fixed list: the meaning of a parameter is never guessed from its value. Pure.

use std::fmt;
use std::str::FromStr;

use tidings_protocol::CanonicalUrl;

/// Names in a list of tracking parameters: more than any published list has.
const TRACKING_PARAMS_MAX: usize = 1_000;

/// The names that are removed by default, separated by commas. Each is used by one product for one
/// purpose, is an unlikely choice for anything else, and does not change the page. Names that are
/// also used with a meaning (`ref`, `source`, `s_cid`, `cid`, `spm`, `si`, `mc`) are not in the
/// list.
const DEFAULT: &[&str] = &[
    // Campaigns, as introduced by Google Analytics (also Matomo's `mtm_` and `pk_`).
    "utm_*,mtm_*,pk_campaign,pk_kwd,pk_keyword,pk_source,pk_medium,pk_content,pk_cid",
    // Clicks on advertisements: Google (and its linker between domains), Microsoft, Meta, Yandex,
    // X, TikTok, LinkedIn, Reddit, Wicked Reports; srsltid is that of Google's shopping results.
    "gclid,gclsrc,dclid,gbraid,wbraid,gad_source,gad_campaignid,srsltid,_gl,msclkid,fbclid",
    "yclid,ysclid,_openstat,twclid,ttclid,li_fat_id,rdt_cid,rb_clickid,wickedid",
    // Sharing: Instagram, Facebook's plugins.
    "igshid,igsh,fb_action_ids,fb_action_types,fb_ref,fb_source",
    // Recipients of mail: Mailchimp, HubSpot, Marketo, Vero, Omeda, MailerLite, beehiiv,
    // Bloomreach.
    "mc_cid,mc_eid,_hsenc,_hsmi,__hssc,__hstc,__hsfp,hsCtaTracking,mkt_tok,vero_id,vero_conv",
    "oly_anon_id,oly_enc_id,ml_subscriber,ml_subscriber_hash,_bhlid,bsft_clkid,bsft_uid",
    // Sessions, under the default names of PHP, Java servlets and ASP. A server starts a new
    // session if it gets none.
    "PHPSESSID,jsessionid,JSESSIONID,ASPSESSIONID*,;jsessionid",
];

fn default_names() -> impl Iterator<Item = &'static str> {
    DEFAULT.iter().flat_map(|names| names.split(','))
}

/// The parameters that are removed from links.
///
/// Written as a list with commas. `NAME` is a name in the query, compared byte for byte with the
/// text before the `=`. `NAME*` matches a prefix. `;NAME` follows a segment of the path. `default`
/// stands for the built-in list; `none`, alone, for an empty one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrackingParams {
    /// As configured; `default` for the built-in list.
    text: String,
    /// Sorted.
    exact: Vec<Box<str>>,
    prefixes: Vec<Box<str>>,
    /// Names after a `;` in a path.
    in_path: Vec<Box<str>>,
}

/// The text is not a valid list of parameters.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TrackingParamsError {
    /// An empty name, or one with a character that is not allowed.
    #[error(
        "`{0}` is not a parameter name; expected names separated by commas, `default` or `none`"
    )]
    Name(String),
    /// Too many names.
    #[error("more than {TRACKING_PARAMS_MAX} names; use a prefix such as `utm_*`")]
    TooMany,
}

impl Default for TrackingParams {
    fn default() -> Self {
        "default".parse().expect("the built-in list is valid")
    }
}

impl TrackingParams {
    /// An empty list.
    pub fn none() -> Self {
        Self {
            text: "none".to_owned(),
            exact: Vec::new(),
            prefixes: Vec::new(),
            in_path: Vec::new(),
        }
    }

    /// The URL without these parameters; `None` if it has none of them. The rest keeps its order
    /// and its bytes; a `?` with nothing after it is removed too.
    pub fn strip(&self, url: &CanonicalUrl<'_>) -> Option<CanonicalUrl<'static>> {
        let text = url.as_str();
        let (before, query) = match text.split_once('?') {
            Some((before, query)) => (before, Some(query)),
            None => (text, None),
        };
        let start = before.len() - url.path().len();
        let path = self.strip_path(&before[start..]);
        let left = query.and_then(|query| self.strip_query(query));
        if path.is_none() && left.is_none() {
            return None;
        }
        let mut text = before[..start].to_owned();
        text.push_str(path.as_deref().unwrap_or(&before[start..]));
        match (&left, query) {
            (Some(left), _) if left.is_empty() => {}
            (Some(left), _) => text.extend(["?", left]),
            (None, Some(query)) => text.extend(["?", query]),
            (None, None) => {}
        }
        CanonicalUrl::parse(&text).ok().map(CanonicalUrl::into_owned)
    }

    /// Like `strip`, for the text of a canonical URL. Most URLs have nothing to remove, and are not
    /// parsed.
    pub fn strip_text(&self, url: &str) -> Option<CanonicalUrl<'static>> {
        memchr::memchr2(b'?', b';', url.as_bytes())?;
        self.strip(&CanonicalUrl::parse(url).ok()?)
    }

    /// `None` if there is nothing to remove.
    fn strip_query(&self, query: &str) -> Option<String> {
        let is_kept =
            |pair: &&str| !self.is_listed(pair.split_once('=').map_or(*pair, |pair| pair.0));
        if query.split('&').all(|pair| is_kept(&pair)) {
            return None;
        }
        let mut left = String::with_capacity(query.len());
        for (index, pair) in query.split('&').filter(is_kept).enumerate() {
            left.push_str(if index == 0 { "" } else { "&" });
            left.push_str(pair);
        }
        Some(left)
    }

    fn is_listed(&self, name: &str) -> bool {
        self.exact.binary_search_by(|listed| (**listed).cmp(name)).is_ok()
            || self.prefixes.iter().any(|prefix| name.starts_with(&**prefix))
    }

    /// `None` if there is nothing to remove.
    fn strip_path(&self, path: &str) -> Option<String> {
        if self.in_path.is_empty() || !path.contains(';') {
            return None;
        }
        let mut left = String::with_capacity(path.len());
        for (index, segment) in path.split('/').enumerate() {
            left.push_str(if index == 0 { "" } else { "/" });
            let mut params = segment.split(';');
            let name = params.next().unwrap_or_default();
            left.push_str(name);
            for param in params {
                let listed = param.split_once('=').map_or(param, |param| param.0);
                // Without it, `..;jsessionid=1` would be another path.
                if matches!(name, "." | "..") || !self.in_path.iter().any(|name| **name == *listed)
                {
                    left.extend([";", param]);
                }
            }
        }
        (left.len() < path.len()).then_some(left)
    }

    fn add(&mut self, name: &str) {
        let (list, name) = match (name.strip_prefix(';'), name.strip_suffix('*')) {
            (Some(name), _) => (&mut self.in_path, name),
            (None, Some(prefix)) => (&mut self.prefixes, prefix),
            (None, None) => (&mut self.exact, name),
        };
        list.push(name.into());
    }
}

impl FromStr for TrackingParams {
    type Err = TrackingParamsError;

    fn from_str(text: &str) -> Result<Self, TrackingParamsError> {
        let mut params = Self::none();
        if text == "none" {
            return Ok(params);
        }
        for (index, name) in text.split(',').map(str::trim).enumerate() {
            if index >= TRACKING_PARAMS_MAX {
                return Err(TrackingParamsError::TooMany);
            }
            match name {
                "default" => default_names().for_each(|name| params.add(name)),
                name if is_name(name) => params.add(name),
                name => return Err(TrackingParamsError::Name(name.to_owned())),
            }
        }
        text.clone_into(&mut params.text);
        params.exact.sort_unstable();
        Ok(params)
    }
}

/// `*` alone would match everything, and a separator of parameters cannot be part of a name. `none`
/// together with other names is a mistake.
fn is_name(name: &str) -> bool {
    let bare = name.strip_prefix(';').or_else(|| name.strip_suffix('*')).unwrap_or(name);
    let is_part = |byte: u8| byte.is_ascii_graphic() && !b"#%&*+/;=?".contains(&byte);
    !bare.is_empty() && bare.bytes().all(is_part) && name != "none"
}

impl fmt::Display for TrackingParams {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn stripped(params: &str, url: &str) -> String {
        let params: TrackingParams = params.parse().unwrap();
        let url = CanonicalUrl::parse(url).unwrap();
        let left = params.strip(&url);
        assert_eq!(params.strip_text(url.as_str()), left);
        left.map_or_else(|| format!("= {url}"), |url| url.to_string())
    }

    #[test]
    fn tracking_parameters_are_removed_and_all_else_stays() {
        for (url, left) in [
            ("http://a/?utm_source=x", "http://a/"),
            ("http://a/?utm_source", "http://a/"),
            ("http://a/?b=2&utm_source=x&a=1&utm_medium=&c", "http://a/?b=2&a=1&c"),
            ("http://a/?&&b&fbclid=1&&", "http://a/?&&b&&"),
            ("http://a/?b=%C3+%20'&gclid=%41#d", "http://a/?b=%C3+%20%27"),
            ("http://a/?utm%5fsource=x&b=1", "http://a/?b=1"),
            ("http://a:81/b/c?_hsenc=1&_hsmi=2", "http://a:81/b/c"),
            ("http://a/b;jsessionid=1A.n1", "http://a/b"),
            ("http://a/b;jsessionid=1A/c;v=1;jsessionid=2?d=e", "http://a/b/c;v=1?d=e"),
            ("http://a/;jsessionid=1A?PHPSESSID=2", "http://a/"),
        ] {
            assert_eq!(stripped("default", url), left, "{url}");
        }
    }

    #[test]
    fn ambiguous_parameters_stay() {
        for url in [
            "http://a/",
            "http://a/?",
            "http://a/?b=utm_source",
            "http://a/?b?utm_source=1",
            "http://a/?UTM_SOURCE=1",
            "http://a/?utm=1",
            "http://a/?fbclid2=1",
            "http://a/?sid=0123456789abcdef0123456789abcdef",
            "http://a/?ref=b&source=c&id=1&s=2&page=3",
            "http://a/utm_source=1/fbclid",
            "http://a/b;v=jsessionid",
            "http://a/?a;jsessionid=1",
            "http://a/b/..;jsessionid=1/c",
        ] {
            assert_eq!(stripped("default", url), format!("= {url}"));
        }
    }

    #[test]
    fn the_list_can_be_configured() {
        let url = "http://a/b;v=1?utm_source=1&ref=2&reference=3&x=4";
        assert_eq!(stripped("none", url), format!("= {url}"));
        assert_eq!(stripped("default,ref", url), "http://a/b;v=1?reference=3&x=4");
        assert_eq!(stripped("ref*, x", url), "http://a/b;v=1?utm_source=1");
        assert_eq!(stripped(";v", url), "http://a/b?utm_source=1&ref=2&reference=3&x=4");
        for text in ["none", "default", "default,ref", "a,b*,;c"] {
            assert_eq!(text.parse::<TrackingParams>().unwrap().to_string(), text);
        }
        for text in ["", "*", "a,,b", "a,none", "a=b", ";", "a b", "a%20", "a**", "ä"] {
            assert!(text.parse::<TrackingParams>().is_err(), "{text}");
        }
        let many = vec!["a"; TRACKING_PARAMS_MAX + 1].join(",");
        assert_eq!(many.parse::<TrackingParams>(), Err(TrackingParamsError::TooMany));
    }

    #[test]
    fn every_default_name_is_valid_and_unique() {
        for name in default_names() {
            assert!(is_name(name), "{name}");
            assert_eq!(default_names().filter(|other| *other == name).count(), 1, "{name}");
        }
    }

    proptest! {
        /// Compares with the simplest implementation; a second run changes nothing.
        #[test]
        fn as_a_filter_of_pairs(pairs in prop::collection::vec(
            prop::sample::select(&[
                "utm_a=1", "utm_", "fbclid=%25", "a=1", "b", "", "=", "gclid=1=2", "gclidx=%C3", "x?fbclid=1",
            ][..]),
            1..9,
        )) {
            let query = pairs.join("&");
            let text = format!("https://example.org/p?{query}");
            let url = CanonicalUrl::parse(&text).unwrap();
            let tracks = |pair: &&str| {
                let name = pair.split('=').next().unwrap();
                name.starts_with("utm_") || name == "fbclid" || name == "gclid"
            };
            let params = TrackingParams::default();
            let left = params.strip(&url);
            if pairs.iter().any(tracks) {
                let kept: Vec<_> = pairs.iter().copied().filter(|pair| !tracks(pair)).collect();
                let mark = if kept.concat().is_empty() && kept.len() < 2 { "" } else { "?" };
                let expected = format!("https://example.org/p{mark}{}", kept.join("&"));
                let left = left.unwrap();
                prop_assert_eq!(left.as_str(), expected);
                prop_assert_eq!(params.strip(&left), None);
            } else {
                prop_assert_eq!(left, None);
            }
        }
    }
}
