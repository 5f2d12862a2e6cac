//! Limits of memory and time.

use super::*;

#[test]
fn huge_tags_do_not_cost_memory_or_the_rest_of_a_page() {
    for (start, is_cut) in [("<img src=\"data:", false), ("<a href=\"", true)] {
        for (length, is_long) in [(TAG_BYTES_MAX - start.len() - 2, false), (TAG_BYTES_MAX, true)] {
            let html = format!("<a href=before>{start}{}\"><a href=after>", "x".repeat(length));
            let content = read(&[], &[html.as_bytes()]);
            assert_eq!((content.cut.is_some(), content.links.len()), (is_cut && is_long, 2));
            for size in [100, 16384] {
                assert_eq!(read(&[], &html.as_bytes().chunks(size).collect::<Vec<_>>()), content);
            }
        }
    }
    let script = format!("<script {}>'<a href=no>'</script><a href=a>", "x ".repeat(TAG_BYTES_MAX));
    assert_eq!(paths(&script), ["a"]);
}

#[test]
fn the_number_of_links_is_limited() {
    let html = (0..LINKS_MAX + 5).map(|n| format!("<a href={n}></a>")).collect::<Vec<_>>().concat();
    let content = read(&[], &[html.as_bytes()]);
    assert_eq!((content.links.len(), content.cut.is_some()), (LINKS_MAX, true));
    let long = "x".repeat(8000);
    let html = (0..400).map(|n| format!("<a href={long}{n}>")).collect::<Vec<_>>().concat();
    let content = read(&[], &[html.as_bytes()]);
    assert!(content.links.len() <= LINKS_BYTES_MAX / 8000 && content.cut.is_some());
}

#[test]
fn short_links_below_a_long_base_do_not_cost_memory() {
    let html = (0..10_000).map(|n| format!("<a href={n}>")).collect::<Vec<_>>().concat();
    let html = format!("<base href=\"/{}/\">{html}", "x".repeat(8000));
    let content = read(&[], &[html.as_bytes()]);
    let bytes: usize = content.links.iter().map(|link| link.url.len()).sum();
    assert!(bytes <= LINKS_ABSOLUTE_BYTES_MAX && bytes > LINKS_ABSOLUTE_BYTES_MAX / 2, "{bytes}");
    assert!(content.cut.is_some());
}

#[test]
fn header_links_are_limited_and_only_relevant_ones_count() {
    let styles = "</style.css>; rel=stylesheet, ".repeat(1000);
    let pages = (0..200).map(|n| format!("</{n}>; rel=next, ")).collect::<Vec<_>>().concat();
    let content = read(&[("Link", &styles), ("Link", &pages), ("Link", &pages)], &[b""]);
    assert_eq!((content.links.len(), content.cut.is_some()), (HEADER_LINKS_MAX, true));
    let content = read(&[("Link", &styles), ("Link", "</a>; rel=next")], &[b""]);
    assert_eq!((content.links.len(), content.cut), (1, None));
}

#[test]
fn deep_nesting_is_cheap() {
    for element in ["<div>", "<svg>", "<svg><desc><b>", "<math><mi>", "<!--", "<a "] {
        let html = element.repeat(1 << 18);
        let content = read(&[], &html.as_bytes().chunks(16384).collect::<Vec<_>>());
        assert!(content.links.is_empty());
    }
    let deep = |n| {
        format!(
            "{}{}</svg><style><a href=no></style><a href=a>",
            "<svg>".repeat(n),
            "</svg>".repeat(n - 1)
        )
    };
    assert_eq!(paths(&deep(FOREIGN_DEPTH_MAX)), ["a"]);
    assert_eq!(paths(&deep(FOREIGN_DEPTH_MAX + 9)), ["a"]);
}
