mod oracle;

use proptest::prelude::*;

use super::rule::{StarMeaning, normalise};
use super::*;

#[track_caller]
fn allowed(text: &str, agent: &str, path: &str) -> bool {
    RobotsRules::parse(text.as_bytes(), product_token(agent)).allows(path)
}

/// The sitemaps of `http://x.example/r/robots.txt`.
fn sitemap_urls(text: &str) -> Vec<String> {
    let url = CanonicalUrl::parse("http://x.example/r/robots.txt").unwrap();
    sitemaps(text.as_bytes(), &url).iter().map(ToString::to_string).collect()
}

#[test]
fn cases_that_parsers_get_wrong() {
    let table: &[(&str, &str, &str, bool)] = &[
        // No rules for this crawler.
        ("", "Bot", "/x", true),
        ("User-agent: Other\nDisallow: /", "Bot", "/x", true),
        ("Disallow: /\nUser-agent: Bot\nDisallow: /a", "Bot", "/x", true),
        ("User-agent: *\nDisallow:", "Bot", "/x", true),
        ("User-agent: *\nDisallow: /\nUser-agent: Bot\nDisallow:", "Bot", "/x", true),
        // Product tokens.
        ("User-agent: Bot/2.1\nDisallow: /", "Bot/9.9 (+http://x)", "/x", false),
        ("User-agent: bOT\nDisallow: /", "Bot", "/x", false),
        ("User-agent: Bot Extra\nDisallow: /", "Bot", "/x", false),
        ("User-agent: Bot-Image\nDisallow: /", "Bot", "/x", true),
        ("User-agent: Bo\nDisallow: /", "Bot", "/x", true),
        ("User-agent: Bot2\nDisallow: /", "Bot", "/x", true),
        (
            "User-agent: Bot\nDisallow: /",
            "Mozilla/5.0 (compatible; Bot/2.1; +http://x)",
            "/x",
            false,
        ),
        ("User-agent: mozilla\nDisallow: /", "Mozilla/5.0 (compatible; Bot/2.1)", "/x", true),
        ("User-agent: mozilla\nDisallow: /", "Mozilla/5.0 (X11; Linux)", "/x", false),
        ("User-agent: J\u{e4}ger\nDisallow: /", "J\u{e4}ger/1", "/x", false),
        ("User-agent: J\u{e4}ger\nDisallow: /", "J\u{fc}nger/1", "/x", true),
        ("User-agent: /2.1\nDisallow: /", "", "/x", true),
        ("User-agent: * x\nDisallow: /", "Bot", "/x", false),
        ("User-agent: *x\nDisallow: /", "Bot", "/x", true),
        // Groups.
        ("User-agent: a\nUser-agent: Bot\nDisallow: /", "Bot", "/x", false),
        ("User-agent: Bot\nCrawl-delay: 1\nUser-agent: b\nDisallow: /", "Bot", "/x", false),
        ("User-agent: Bot\nSitemap: http://x/s\nUser-agent: b\nDisallow: /", "Bot", "/x", false),
        ("User-agent: Bot\n\n\nUser-agent: b\n\nDisallow: /", "Bot", "/x", false),
        ("User-agent: Bot\nDisallow: /a\nUser-agent: b\nDisallow: /", "Bot", "/x", true),
        ("User-agent: Bot\nDisallow:\nUser-agent: b\nDisallow: /", "Bot", "/x", true),
        (
            "User-agent: Bot\nDisallow: /a\nUser-agent: b\nDisallow: /\nUser-agent: Bot\nDisallow: /c",
            "Bot",
            "/a",
            false,
        ),
        (
            "User-agent: Bot\nDisallow: /a\nUser-agent: b\nDisallow: /\nUser-agent: Bot\nDisallow: /c",
            "Bot",
            "/c",
            false,
        ),
        ("User-agent: *\nDisallow: /a\nUser-agent: *\nDisallow: /b", "Bot", "/b", false),
        ("User-agent: *\nDisallow: /\nUser-agent: Bot\nAllow: /a", "Bot", "/x", true),
        // The longest match decides, allow on a tie.
        ("User-agent: *\nDisallow: /a\nAllow: /a/b", "Bot", "/a/b/c", true),
        ("User-agent: *\nAllow: /a/b\nDisallow: /a", "Bot", "/a/c", false),
        ("User-agent: *\nAllow: /a\nDisallow: /a", "Bot", "/a", true),
        ("User-agent: *\nDisallow: /a\nAllow: /a", "Bot", "/a", true),
        ("User-agent: *\nDisallow: /\nAllow: /$", "Bot", "/", true),
        ("User-agent: *\nDisallow: /\nAllow: /$", "Bot", "/x", false),
        ("User-agent: *\nAllow: /p\nDisallow: /*.html", "Bot", "/page.html", false),
        ("User-agent: *\nDisallow: /a*\nAllow: /a", "Bot", "/a", false),
        // Wildcards.
        ("User-agent: *\nDisallow: /*.php", "Bot", "/a/b.php?x", false),
        ("User-agent: *\nDisallow: /*.php$", "Bot", "/a/b.php?x", true),
        ("User-agent: *\nDisallow: /*.php$", "Bot", "/a.php/b.php", false),
        ("User-agent: *\nDisallow: /a*b*c$", "Bot", "/a-b-c-c", false),
        ("User-agent: *\nDisallow: /a*b*c$", "Bot", "/a-c-b", true),
        ("User-agent: *\nDisallow: /a*", "Bot", "/a", false),
        ("User-agent: *\nDisallow: /a*$", "Bot", "/abc", false),
        ("User-agent: *\nDisallow: /a**b", "Bot", "/axb", false),
        ("User-agent: *\nDisallow: *", "Bot", "/", false),
        ("User-agent: *\nDisallow: */b", "Bot", "/a/b", false),
        ("User-agent: *\nDisallow: /ab*ba$", "Bot", "/aba", true),
        ("User-agent: *\nDisallow: /fish", "Bot", "/Fish", true),
        ("User-agent: *\nDisallow: /a?b", "Bot", "/a?bc", false),
        ("User-agent: *\nDisallow: /a$b", "Bot", "/a$b", false),
        ("User-agent: *\nDisallow: /a$b", "Bot", "/a", true),
        ("User-agent: *\nDisallow: fish", "Bot", "/fish", true),
        // Percent-encoding.
        ("User-agent: *\nDisallow: /%aa", "Bot", "/%AA", false),
        ("User-agent: *\nDisallow: /%AA", "Bot", "/%aa", false),
        ("User-agent: *\nDisallow: /a%62c", "Bot", "/abc", false),
        ("User-agent: *\nDisallow: /abc", "Bot", "/a%62c", false),
        ("User-agent: *\nDisallow: /a%2Fb", "Bot", "/a/b", true),
        ("User-agent: *\nDisallow: /a%2fb", "Bot", "/a%2Fb", false),
        ("User-agent: *\nDisallow: /\u{30c4}", "Bot", "/%E3%83%84", false),
        ("User-agent: *\nDisallow: /%E3%83%84", "Bot", "/%e3%83%84/x", false),
        ("User-agent: *\nDisallow: /a b", "Bot", "/a%20b", false),
        ("User-agent: *\nDisallow: /a%2Ab", "Bot", "/a*b", false),
        ("User-agent: *\nDisallow: /a%2Ab", "Bot", "/axb", true),
        ("User-agent: *\nDisallow: /100%", "Bot", "/100%", false),
        // The table of RFC 9309 section 2.2.2.
        ("User-agent: *\nDisallow: /foo/bar?baz=quz", "Bot", "/foo/bar?baz=quz", false),
        (
            "User-agent: *\nDisallow: /foo/bar?baz=https://foo.bar",
            "Bot",
            "/foo/bar?baz=https%3A%2F%2Ffoo.bar",
            false,
        ),
        (
            "User-agent: *\nDisallow: /foo/bar?baz=https%3a%2f%2Ffoo.bar",
            "Bot",
            "/foo/bar?baz=https://foo.bar/x",
            false,
        ),
        ("User-agent: *\nDisallow: /foo/bar/\u{30c4}", "Bot", "/foo/bar/%E3%83%84", false),
        ("User-agent: *\nDisallow: /foo/bar/%62%61%7A", "Bot", "/foo/bar/baz", false),
        // Slashes of the query, whether or not the rule contains a question mark.
        ("User-agent: *\nDisallow: /*u=http:%2F%2F", "Bot", "/a?u=http:%2F%2Fx", false),
        ("User-agent: *\nDisallow: /*u=http://", "Bot", "/a?u=http://x", false),
        ("User-agent: *\nDisallow: /*?u=/%3F", "Bot", "/a?u=%2f?", false),
        ("User-agent: *\nDisallow: /a%3Fb", "Bot", "/a?b", true),
        ("User-agent: *\nDisallow: /a?b", "Bot", "/a%3Fb", true),
        // The length as written.
        ("User-agent: *\nDisallow: /a:b\nAllow: /a*b%62", "Bot", "/a:bb", true),
        ("User-agent: *\nAllow: /a*bb\nDisallow: /a::b", "Bot", "/a::bb", true),
        // The index page of a directory: by the RFC, `/d/` is another page. (Google's parser allows
        // it.)
        ("User-agent: *\nAllow: /d/index.html\nDisallow: /", "Bot", "/d/", false),
        ("User-agent: *\nAllow: /d/index.html\nDisallow: /", "Bot", "/d/index.html", true),
        ("User-agent: *\nAllow: /d/index.html\nDisallow: /", "Bot", "/d/x", false),
        ("User-agent: *\nDisallow: /d/index.html", "Bot", "/d/", true),
        // Leniency.
        ("\0User-agent: *\0\n\0Disallow: /\0", "Bot", "/x", false),
        ("User-agent: *\nDisallow /a:b", "Bot", "/a:b", false),
        ("user agent Bot\nDisallow /", "Bot", "/x", false),
        ("User-agent: *\nDisallow: /\nAllow must be asked for: see /x", "Bot", "/x", false),
        ("\u{feff}User-agent: *\nDisallow: /", "Bot", "/x", false),
        ("User-agent: *\rDisallow: /", "Bot", "/x", false),
        ("User-agent: *\r\nDisallow: /\r\n", "Bot", "/x", false),
        ("user-AGENT :  *  # all\n  DISALLOW : /a # b", "Bot", "/a", false),
        ("User-agent: *\ndisalow: /", "Bot", "/x", false),
        ("User-agent *\nDisallow /", "Bot", "/x", false),
        ("User-agent: *\nDisallow / is a word", "Bot", "/x", true),
        ("<html>User-agent: *\nDisallow: /</html>", "Bot", "/x", true),
        // The file itself.
        ("User-agent: *\nDisallow: /", "Bot", "/robots.txt", true),
        ("User-agent: *\nDisallow: /", "Bot", "/robots.txt2", false),
    ];
    for &(text, agent, path, expected) in table {
        assert_eq!(allowed(text, agent, path), expected, "{text:?} for {agent} at {path}");
    }
}

#[test]
fn crawl_delay_is_the_longest_of_the_matching_groups() {
    let delay = |text: &str| RobotsRules::parse(text.as_bytes(), "Bot").crawl_delay();
    assert_eq!(delay("User-agent: *\nCrawl-delay: 2.5"), Some(Duration::from_millis(2500)));
    assert_eq!(
        delay("User-agent: Bot\nCrawl-delay: 1\nUser-agent: b\nAllow: /"),
        Some(Duration::from_secs(1))
    );
    // A delay applies to the lines directly before it, though the rules after it apply to the whole
    // group.
    assert_eq!(delay("User-agent: b\nCrawl-delay: 9\nUser-agent: Bot\nAllow: /"), None);
    assert_eq!(
        delay("User-agent: b\nCrawl-delay: soon\nUser-agent: Bot\nCrawl-delay: 9"),
        Some(Duration::from_secs(9))
    );
    assert_eq!(
        delay("User-agent: Bot\nAllow: /\nCrawl-delay: 9\nAllow: /x\nCrawl-delay: 4"),
        Some(Duration::from_secs(9))
    );
    assert_eq!(delay("User-agent: b\nAllow: /\nCrawl-delay: 9\nUser-agent: Bot\nAllow: /"), None);
    assert_eq!(
        delay("User-agent: Bot\nCrawl-delay: 1\nAllow: /\nUser-agent: Bot\nCrawl-delay: 3"),
        Some(Duration::from_secs(3))
    );
    assert_eq!(delay("User-agent: *\nCrawl-delay: 1e300"), Some(CRAWL_DELAY_MAX));
    for nonsense in ["-1", "nan", "inf", "soon", "5s", ""] {
        assert_eq!(delay(&format!("User-agent: *\nCrawl-delay: {nonsense}")), None, "{nonsense}");
    }
}

#[test]
fn status_decides_before_the_text() {
    for (status, expected) in [
        (0, Availability::Unreachable),
        (200, Availability::Readable),
        (204, Availability::Readable),
        (304, Availability::Unavailable),
        (401, Availability::Unavailable),
        (403, Availability::Unavailable),
        (404, Availability::Unavailable),
        (410, Availability::Unavailable),
        (499, Availability::Unavailable),
        (429, Availability::Unreachable),
        (500, Availability::Unreachable),
        (503, Availability::Unreachable),
        (999, Availability::Unreachable),
    ] {
        assert_eq!(Availability::of_status(status), expected, "{status}");
    }
}

#[test]
fn only_whole_lines_within_500_kib_are_read() {
    // The line of `/private` begins this many bytes before the limit.
    let rules = |bytes: usize| {
        let mut text = b"User-agent: *\nDisallow: /a\n#".to_vec();
        text.resize(ROBOTS_BYTES_MAX - bytes, b'x');
        text.extend(b"\nDisallow: /private\nDisallow: /b\n");
        RobotsRules::parse(&text, "Bot")
    };
    let line = "\nDisallow: /private\n".len();
    for bytes in 0..line {
        assert!(!rules(bytes).allows("/a") && rules(bytes).allows("/private"), "{bytes}");
    }
    assert!(!rules(line).allows("/private") && rules(line).allows("/b"));
}

#[test]
fn the_deciding_line_is_shown_as_written() {
    let decided = |text: &str, path: &str| {
        let line = RobotsRules::parse(text.as_bytes(), "Bot").decide(path).line;
        line.map(|line| display_line(text.as_bytes(), line))
    };
    let text = "\u{feff}User-agent: *\r\nAllow:/  # all\n \tDISALLOW :  /%61 # no\ndisallow /b\r\nAllow: /c/x";
    assert_eq!(decided(text, "/x").as_deref(), Some("Allow:/"));
    assert_eq!(decided(text, "/a").as_deref(), Some("DISALLOW :  /%61"));
    assert_eq!(decided(text, "/b").as_deref(), Some("disallow /b"));
    assert_eq!(decided(text, "/c/x").as_deref(), Some("Allow: /c/x"));
    assert_eq!(decided(text, "/robots.txt"), None);
    assert_eq!(decided("User-agent: *\nDisallow: /a", "/b"), None);
    let long = format!("User-agent: *\nDisallow: /*{}", "\u{e9}*".repeat(1000));
    let shown = decided(&long, &"\u{e9}".repeat(2000).replacen('\u{e9}', "/", 1)).unwrap();
    assert!(long.contains(&shown) && shown.len() > ROBOTS_RULE_SHOWN_BYTES_MAX - 4);
    assert!(shown.len() <= ROBOTS_RULE_SHOWN_BYTES_MAX);
}

#[test]
fn sitemaps_are_found_in_any_group() {
    let text = "Sitemap: https://x.example/1#top\nUser-agent: a\nSITEMAP :http://x.example/2\nUser-agent: b\n\
                Disallow: /\nsite-map: https://x.example/1\nSitemap: /3\nsitemap: ftp://x/\nSitemap:\n\
                Sitemap: near.xml\nSitemap https://x.example/4 # the last";
    let expected = [
        "https://x.example/1",
        "http://x.example/2",
        "http://x.example/3",
        "http://x.example/r/near.xml",
        "https://x.example/4",
    ];
    assert_eq!(sitemap_urls(text), expected);
    assert!(!RobotsRules::parse(text.as_bytes(), "a").allows("/"));
    let many: Vec<_> = (0..1000).map(|number| format!("Sitemap: http://x/{number}\n")).collect();
    assert_eq!(sitemap_urls(&many.concat()).len(), ROBOTS_SITEMAPS_MAX);
    let long = format!("Sitemap: http://x/{}", "a".repeat(8 * 1024));
    assert!(sitemap_urls(&long).is_empty());
}

#[test]
fn repeated_rules_are_stored_once() {
    let once = RobotsRules::parse(b"User-agent: *\nDisallow: /x", "Bot");
    let often = format!("User-agent: *\n{}", "Disallow: /x\ndisallow: /%78\n".repeat(10_000));
    let often = RobotsRules::parse(often.as_bytes(), "Bot");
    assert_eq!(often.memory_bytes(), once.memory_bytes());
}

/// Tries every sequence for a star.
fn matches_naively(pattern: &[u8], to_the_end: bool, path: &[u8]) -> bool {
    match pattern {
        [] => !to_the_end || path.is_empty(),
        [b'*', rest @ ..] => {
            (0..=path.len()).any(|skip| matches_naively(rest, to_the_end, &path[skip..]))
        }
        [byte, rest @ ..] => {
            path.first() == Some(byte) && matches_naively(rest, to_the_end, &path[1..])
        }
    }
}

/// A line that may occur in a robots.txt.
fn likely_line() -> impl Strategy<Value = String> {
    let key = "(User-agent|user agent|Disallow|disalow|Allow|Crawl-delay|Sitemap|x|)";
    let value = prop_oneof![
        "(\\*|Bot|b|c/2)",
        "[*$/ab%2fF.?:\u{e9} ]{0,12}",
        "/[ab]{0,3}(\\*|/|index.html|)\\$?",
        "[0-9]{0,3}(\\.[0-9]{1,9})?",
    ];
    let parts = (key, "(: ?|:| |)", value, "(|#x)", "(\r|\n|\r\n)");
    parts.prop_map(|(key, colon, value, comment, end)| [key, colon, value, comment, end].concat())
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_a_panic(text in prop::collection::vec(any::<u8>(), 0..2000), path in ".{0,40}") {
        RobotsRules::parse(&text, "Bot").allows(&path);
    }

    #[test]
    fn likely_lines_are_read_without_a_panic(
        lines in prop::collection::vec(likely_line(), 0..20),
        path in "/[ab%2f*$/.?]{0,12}",
    ) {
        let text = lines.concat();
        let decision = RobotsRules::parse(text.as_bytes(), "Bot").decide(&path);
        let line = decision.line.map(|line| display_line(text.as_bytes(), line).to_ascii_lowercase());
        prop_assert!(line.is_none_or(|line| line.starts_with(['a', 'd'])));
        sitemap_urls(&text);
    }

    #[test]
    fn stars_match_like_a_naive_matcher(pattern in "/[ab*]{0,8}", to_the_end: bool, path in "/[ab]{0,8}") {
        let end = if to_the_end { "$" } else { "" };
        let text = format!("User-agent: *\nDisallow: {pattern}{end}");
        let matches = matches_naively(pattern.as_bytes(), to_the_end, path.as_bytes());
        prop_assert_eq!(allowed(&text, "Bot", &path), !matches);
    }

    #[test]
    fn normalising_twice_changes_nothing(text in prop::collection::vec(any::<u8>(), 0..60), folded: bool) {
        let (mut once, mut twice) = (Vec::new(), Vec::new());
        normalise(&text, StarMeaning::Wildcard, folded, &mut once);
        normalise(&once, StarMeaning::Wildcard, folded, &mut twice);
        prop_assert_eq!(once, twice);
    }

    #[test]
    fn an_excerpt_has_the_same_rules(
        lines in prop::collection::vec(likely_line(), 0..30),
        agent in "(Bot|b|c)",
        paths in prop::collection::vec("/[ab%2fF?*$/.:]{0,12}", 20),
    ) {
        let text = lines.concat();
        let rules = RobotsRules::parse(text.as_bytes(), &agent);
        let again = RobotsRules::of_excerpt(&rules.excerpt(text.as_bytes()));
        prop_assert_eq!(rules.crawl_delay(), again.crawl_delay());
        prop_assert_eq!(rules.memory_bytes(), again.memory_bytes());
        for path in paths {
            prop_assert_eq!(rules.allows(&path), again.allows(&path), "{}", path);
        }
    }
}
