//! Directives for crawlers: `<meta name=robots>` and the header `X-Robots-Tag`, as the large search
//! engines document them. A later directive never revokes an earlier one.

use jiff::civil::{Date, DateTime};
use jiff::fmt::rfc2822;
use jiff::tz::TimeZone;
use jiff::{Timestamp, civil};

/// The directives for this crawler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RobotsDirectives {
    /// Do not index the page.
    pub(super) noindex: bool,
    /// Do not follow its links.
    pub(super) nofollow: bool,
    /// Do not index it from this time on, in seconds of Unix time.
    pub(super) unavailable_after: Option<i64>,
}

/// Directives with a value, which look like the name of a crawler before its directives.
const WITH_VALUE: &[&str] =
    &[UNAVAILABLE_AFTER, "max-snippet", "max-image-preview", "max-video-preview"];
const UNAVAILABLE_AFTER: &str = "unavailable_after";

impl RobotsDirectives {
    /// Reads the `content` of a `<meta>` for this crawler.
    pub(super) fn add_meta(&mut self, content: &str) {
        self.list(content, |_| None);
    }

    /// Reads a value of `X-Robots-Tag`: directives for all crawlers, and after `name:` for crawlers
    /// of that name.
    pub(super) fn add_header(&mut self, value: &str, token: &str) {
        self.list(value, |item| {
            let (name, rest) = item.split_once(':')?;
            let name = name.trim();
            let is_name = !name.is_empty()
                && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_*.".contains(&b))
                && !WITH_VALUE.iter().any(|it| it.eq_ignore_ascii_case(name));
            let is_ours = ["*", "robots", token].iter().any(|it| it.eq_ignore_ascii_case(name));
            is_name.then_some((is_ours, rest))
        });
    }

    /// `named` returns whether an item begins with the name of this crawler or of another one, and
    /// the rest.
    fn list<'a>(&mut self, list: &'a str, named: impl Fn(&'a str) -> Option<(bool, &'a str)>) {
        let mut is_ours = true;
        // A date may contain a comma after its weekday.
        let mut awaits_date = false;
        for item in list.split(',') {
            let item = match named(item) {
                Some((ours, rest)) => {
                    is_ours = ours;
                    rest
                }
                None => item,
            };
            if !is_ours {
                continue;
            }
            let date = item.split_once(':').filter(|(name, _)| is_unavailable_after(name));
            let date = date.map(|(_, date)| date).or(awaits_date.then_some(item));
            awaits_date =
                date.is_some_and(|date| date.trim().bytes().all(|b| b.is_ascii_alphabetic()));
            match date {
                Some(date) if !awaits_date => self.add_end(date.trim()),
                Some(_) => {}
                // Some sites use spaces instead of commas.
                None => item.split_ascii_whitespace().for_each(|word| self.word(word)),
            }
        }
    }

    fn word(&mut self, word: &str) {
        let is = |directive: &str| word.eq_ignore_ascii_case(directive);
        self.noindex |= is("noindex") || is("none");
        self.nofollow |= is("nofollow") || is("none");
    }

    fn add_end(&mut self, date: &str) {
        if let Some(end) = parse_date(date) {
            let earliest = self.unavailable_after.map_or(end, |known| known.min(end));
            self.unavailable_after = Some(earliest);
        }
    }
}

fn is_unavailable_after(name: &str) -> bool {
    name.trim().eq_ignore_ascii_case(UNAVAILABLE_AFTER)
}

/// Parses a date of RFC 822, RFC 850 or ISO 8601, in seconds of Unix time. Without a zone it is
/// UTC.
fn parse_date(text: &str) -> Option<i64> {
    const RFC_2822: rfc2822::DateTimeParser = rfc2822::DateTimeParser::new().relaxed_weekday(true);
    // The dates of RFC 850 contain dashes.
    let spaced = text.replace('-', " ");
    let utc = |moment: DateTime| Some(moment.to_zoned_datetime(TimeZone::UTC).ok()?.timestamp());
    let moment: Timestamp = RFC_2822
        .parse_timestamp(text)
        .or_else(|_| RFC_2822.parse_timestamp(&spaced))
        .or_else(|_| text.parse())
        .ok()
        .or_else(|| utc(text.parse().ok()?))
        .or_else(|| utc(text.parse::<Date>().ok()?.to_datetime(civil::Time::midnight())))?;
    Some(moment.as_second())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(value: &str) -> (bool, bool, Option<i64>) {
        let mut directives = RobotsDirectives::default();
        directives.add_header(value, "tidings");
        (directives.noindex, directives.nofollow, directives.unavailable_after)
    }

    #[test]
    fn headers_apply_to_all_or_to_named_crawlers() {
        for (value, expected) in [
            ("", (false, false)),
            ("noindex", (true, false)),
            ("NoIndex , NOFOLLOW", (true, true)),
            ("none", (true, true)),
            ("index, follow, all", (false, false)),
            ("noarchive nofollow", (false, true)),
            ("tidings: noindex, nofollow", (true, true)),
            ("TIDINGS:none", (true, true)),
            ("*: noindex", (true, false)),
            ("otherbot: noindex, nofollow", (false, false)),
            ("otherbot: noindex, tidings: nofollow", (false, true)),
            ("noindex, otherbot: nofollow", (true, false)),
            ("tidings: max-snippet:5, nofollow", (false, true)),
            ("max-snippet: -1, max-image-preview:large, nofollow", (false, true)),
            ("noindexed, :noindex, ::", (false, false)),
        ] {
            let (noindex, nofollow, _) = header(value);
            assert_eq!((noindex, nofollow), expected, "{value}");
        }
    }

    #[test]
    fn expiry_dates_are_parsed_in_all_common_forms() {
        const END: Option<i64> = Some(1_277_478_000);
        for (value, expected) in [
            ("unavailable_after: 25 Jun 2010 15:00:00 GMT", (false, END)),
            ("unavailable_after: 25 Jun 2010 07:00:00 PST", (false, END)),
            ("unavailable_after: Fri, 25 Jun 2010 15:00:00 GMT, noindex", (true, END)),
            ("unavailable_after: Friday, 25-Jun-2010 15:00:00 GMT", (false, END)),
            ("Unavailable_After: 2010-06-25T17:00:00+02:00,noindex", (true, END)),
            ("unavailable_after: 2010-06-25T15:00:00", (false, END)),
            ("tidings: unavailable_after: 2010-06-25 15:00:00", (false, END)),
            ("unavailable_after: 2010-06-25", (false, Some(1_277_424_000))),
            (
                "unavailable_after: 2011-01-01, unavailable_after: 2010-06-25",
                (false, Some(1_277_424_000)),
            ),
            ("otherbot: unavailable_after: 2010-06-25", (false, None)),
            ("unavailable_after: soon, noindex", (false, None)),
            ("unavailable_after: 99 Jun 2010 15:00:00 GMT, noindex", (true, None)),
            ("unavailable_after:", (false, None)),
        ] {
            let (noindex, _, end) = header(value);
            assert_eq!((noindex, end), expected, "{value}");
        }
    }
}
