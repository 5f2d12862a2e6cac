use proptest::prelude::*;

use super::*;

#[track_caller]
fn allowed(text: &str, agent: &str, path: &str) -> bool {
    Rules::parse(text.as_bytes(), product_token(agent)).allows(path)
}

#[test]
fn cases_that_parsers_get_wrong() {
    let table: &[(&str, &str, &str, bool)] = &[
        // No rules for us.
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
        // Leniency.
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
fn crawl_delay_is_the_longest_of_our_groups() {
    let delay = |text: &str| Rules::parse(text.as_bytes(), "Bot").crawl_delay();
    assert_eq!(delay("User-agent: *\nCrawl-delay: 2.5"), Some(Duration::from_millis(2500)));
    assert_eq!(
        delay("User-agent: Bot\nCrawl-delay: 1\nUser-agent: b\nAllow: /"),
        Some(Duration::from_secs(1))
    );
    assert_eq!(
        delay("User-agent: b\nCrawl-delay: 9\nUser-agent: Bot\nAllow: /"),
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
        (200, Availability::Readable),
        (204, Availability::Readable),
        (304, Availability::Unavailable),
        (401, Availability::Unavailable),
        (403, Availability::Unavailable),
        (404, Availability::Unavailable),
        (429, Availability::Unreachable),
        (500, Availability::Unreachable),
        (503, Availability::Unreachable),
        (999, Availability::Unreachable),
    ] {
        assert_eq!(Availability::of_status(status), expected, "{status}");
    }
}

#[test]
fn what_follows_500_kib_is_not_read() {
    let mut text = b"User-agent: *\nDisallow: /a\n#".to_vec();
    text.resize(ROBOTS_BYTES_MAX - 1, b'x');
    text.extend(b"\nDisallow: /b\n");
    let rules = Rules::parse(&text, "Bot");
    assert!(!rules.allows("/a"));
    assert!(rules.allows("/b"));
}

/// A star may stand for any sequence: tried in every way.
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

proptest! {
    #[test]
    fn any_bytes_are_read_without_a_panic(text in prop::collection::vec(any::<u8>(), 0..2000), path in ".{0,40}") {
        Rules::parse(&text, "Bot").allows(&path);
    }

    #[test]
    fn likely_lines_are_read_without_a_panic(
        lines in prop::collection::vec(
            ("(User-agent|Disallow|Allow|Crawl-delay|x|)", "(:| |)", "[*$/ab%2f.é ]{0,12}", "(\r|\n|\r\n)"),
            0..20,
        ),
        path in "/[ab%2f*$/.]{0,12}",
    ) {
        let text = lines.into_iter().flat_map(|(a, b, c, d)| [a, b, c, d]).collect::<String>();
        Rules::parse(text.as_bytes(), "Bot").allows(&path);
    }

    #[test]
    fn stars_match_as_a_naive_matcher_says(pattern in "/?[ab*]{0,8}", to_the_end: bool, path in "/[ab]{0,8}") {
        let rule = Rule { pattern: pattern.as_bytes().into(), to_the_end, allow: false };
        prop_assert_eq!(rule.matches(path.as_bytes()), matches_naively(pattern.as_bytes(), to_the_end, path.as_bytes()));
    }

    #[test]
    fn normalising_twice_changes_nothing(text in prop::collection::vec(any::<u8>(), 0..60)) {
        let (mut once, mut twice) = (Vec::new(), Vec::new());
        normalise(&text, Special::Wildcard, &mut once);
        normalise(&once, Special::Wildcard, &mut twice);
        prop_assert_eq!(once, twice);
    }
}
