//! How long the polite scenario takes: a thousand hosts of ten pages each, a robots.txt before them, a delay of a
//! second. It is the delays that take the time, and the rest that this measures.

use std::{collections::BTreeMap, time::Duration};

use tempfile::TempDir;

use crate::support::{
    origin::{Origin, Record, Site},
    process::run,
};

const SITE: Site = Site {
    hosts: 1000,
    pages: 10,
    robots: Some("User-agent: *\nDisallow:\n"),
    answer_after: Duration::from_millis(50),
    across: false,
};

const DELAY: Duration = Duration::from_secs(1);

#[test]
#[ignore = "a measurement, for a release build: cargo test --release --test e2e polite -- --ignored --nocapture"]
fn the_polite_scenario() {
    let origin = Origin::serve(SITE);
    let seeds = origin.seeds();
    // The scope leaves out what is below /private/.
    let mut words =
        vec!["crawl", "--quiet", "--allow-private", "--delay", "1s", "--scope", "prefix"];
    words.extend(seeds.iter().map(String::as_str));
    let folder = TempDir::new().unwrap();
    let began = origin.now();
    let summary = run(folder.path(), &words).expect_code(0).stdout().concat();
    let took = origin.now().saturating_sub(began);

    let record = origin.record();
    record.expect_polite(DELAY);
    record.expect_no_duplicates();
    let pages = usize::from(SITE.hosts) * usize::try_from(SITE.pages).unwrap();
    assert_eq!(record.paths().len(), pages);
    let first = record.0[0].start.saturating_sub(began);
    let last = record.0.iter().filter_map(|hit| hit.end).max().unwrap().saturating_sub(began);
    // Of each host: its requests, and a delay after each of them but the last.
    let floor = SITE.pages * (DELAY + SITE.answer_after) + SITE.answer_after;
    let longer = rests(&record);
    let [median, most] = [longer[longer.len() / 2], longer[longer.len() * 99 / 100]];
    eprintln!("{summary}");
    eprintln!(
        "{took:.3?} in all, of at least {floor:.3?}; the first request after {first:.3?}, the last answer after {last:.3?}"
    );
    eprintln!(
        "rests longer than the delay: by {median:.1?} in the median, {most:.1?} at the 99th percentile"
    );
}

/// By how much more than the delay every host rested each time, least first.
fn rests(record: &Record) -> Vec<Duration> {
    let mut ends = BTreeMap::new();
    let longer = record.0.iter().filter_map(|hit| {
        let before: Option<Duration> = ends.insert(hit.host, hit.end.unwrap());
        Some(hit.start.saturating_sub(before? + DELAY))
    });
    let mut longer: Vec<_> = longer.collect();
    longer.sort_unstable();
    longer
}
