//! Compares generated files with another parser.

use proptest::prelude::*;
use texting_robots::Robot;

use super::super::*;
use super::sitemap_urls;

/// Patterns that both parsers read alike. The other one counts consecutive stars as one when it
/// compares lengths, and does not normalise escapes of reserved characters.
fn pattern() -> impl Strategy<Value = String> {
    "/[ab/]{0,3}(\\*[ab/]{1,2}){0,2}\\$?"
}

fn rule() -> impl Strategy<Value = String> {
    let key = prop_oneof![Just("Allow"), Just("Disallow")];
    (key, pattern()).prop_map(|(key, pattern)| format!("{key}: {pattern}\n"))
}

/// Other lines stand between; a group without rules continues with the next one.
fn group() -> impl Strategy<Value = String> {
    let agents = prop::collection::vec("User-agent: (\\*|a|B|c)( #x)?\n", 1..3);
    let other = "(\n|# Disallow: /\n|Sitemap: http://x/\n|Unknown: /\n)?";
    let rules = prop::collection::vec(rule(), 0..6);
    (agents, other, rules)
        .prop_map(|(agents, other, rules)| [agents.concat(), other, rules.concat()].concat())
}

proptest! {
    #[test]
    fn both_parsers_agree_on_every_path(
        groups in prop::collection::vec(group(), 1..6),
        agent in "[abcd]",
        paths in prop::collection::vec("/[ab/]{0,8}", 20),
    ) {
        let text = groups.concat();
        let ours = RobotsRules::parse(text.as_bytes(), &agent);
        let theirs = Robot::new(&agent, text.as_bytes()).unwrap();
        for path in paths {
            prop_assert_eq!(ours.allows(&path), theirs.allowed(&path), "{} in\n{}", path, text);
        }
    }

    #[test]
    fn both_parsers_find_the_same_delays_and_sitemaps(
        groups in prop::collection::vec(("(a|b|c|\\*)", prop::option::of(0..100_u16), rule()), 1..5),
        sitemap in "http://x/[a-z]{1,9}",
        agent in "[abcd]",
    ) {
        let mut seen = std::collections::BTreeSet::new();
        let mut text = vec![format!("Sitemap: {sitemap}\n")];
        for (name, delay, rule) in groups {
            // The other parser takes the first of several delays, this one the longest.
            let delay = delay.filter(|_| seen.insert(name.clone()));
            let delay = delay.map_or(String::new(), |delay| format!("Crawl-delay: {delay}.25\n"));
            text.push(format!("User-agent: {name}\n{delay}{rule}"));
        }
        let text = text.concat();
        let ours = RobotsRules::parse(text.as_bytes(), &agent);
        let theirs = Robot::new(&agent, text.as_bytes()).unwrap();
        let delay = ours.crawl_delay().map(|delay| delay.as_secs_f32());
        prop_assert_eq!(delay, theirs.delay, "{}", text);
        prop_assert_eq!(sitemap_urls(&text), theirs.sitemaps);
    }
}
