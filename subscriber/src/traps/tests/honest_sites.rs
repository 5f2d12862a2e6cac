//! Honest sites with random names, for the tests of session ids.

use std::collections::BTreeMap;

use fastrand::Rng;

/// Pages by path and query: their content and links.
pub(super) type Pages = BTreeMap<String, (String, Vec<String>)>;

/// A unique name.
pub(super) fn name(rng: &mut Rng) -> String {
    (0..rng.usize(6..10)).map(|_| rng.lowercase()).collect()
}

pub(super) fn word(rng: &mut Rng) -> String {
    (0..rng.usize(3..8)).map(|_| rng.lowercase()).collect()
}

/// Pages with random links, so that each is found; some by number, some by name, some with a query.
pub(super) fn graph(rng: &mut Rng) -> Pages {
    let (page, count) = (name(rng), rng.usize(30..90));
    let mut paths: Vec<String> = vec!["/".to_owned()];
    for n in 1..count {
        paths.push(match rng.u32(..3) {
            0 => format!("/p/{n}"),
            1 => format!("/{}-{}", word(rng), word(rng)),
            _ => format!("/list?{page}={n}"),
        });
    }
    let mut pages = Pages::new();
    for n in 0..paths.len() {
        let children = [2 * n + 1, 2 * n + 2].into_iter().filter(|child| *child < paths.len());
        let others: Vec<usize> = (0..rng.usize(1..8)).map(|_| rng.usize(..paths.len())).collect();
        let links = children.chain(others).chain([0]).map(|n| paths[n].clone()).collect();
        pages.insert(paths[n].clone(), (format!("About {}", word(rng)), links));
    }
    pages
}

/// The pages of a list, with links to the next and perhaps to the one before.
pub(super) fn list(rng: &mut Rng, both_ways: bool) -> Pages {
    let (page, sections) = (name(rng), [word(rng), word(rng)]);
    let mut pages = Pages::new();
    let path = |section: &str, n: usize| format!("/{section}?{page}={n}");
    let starts = sections.iter().map(|section| path(section, 1)).collect();
    pages.insert("/".to_owned(), ("A list".to_owned(), starts));
    for (section, n) in sections.iter().flat_map(|section| (1..=40).map(move |n| (section, n))) {
        let mut links = vec!["/".to_owned()];
        links.extend((n < 40).then(|| path(section, n + 1)));
        links.extend((both_ways && n > 1).then(|| path(section, n - 1)));
        pages.insert(path(section, n), ("Nothing new".to_owned(), links));
    }
    pages
}

/// A shop: half of the products are sold out, with the same text.
pub(super) fn products(rng: &mut Rng, related: usize) -> Pages {
    let (id, page) = (name(rng), name(rng));
    let (thing, list) = (format!("/thing?{id}="), format!("/list?{page}="));
    let mut pages = Pages::new();
    pages.insert("/".to_owned(), ("A shop".to_owned(), vec![format!("{list}0")]));
    for n in 0..5 {
        let things = (1..=50).filter(|thing| thing % 5 == n).map(|n| format!("{thing}{n}"));
        let next = (n < 4).then(|| format!("{list}{}", n + 1));
        pages.insert(format!("{list}{n}"), ("Things".to_owned(), things.chain(next).collect()));
    }
    for n in 1..=50 {
        let text = if n % 2 == 0 { "Sold out".to_owned() } else { word(rng) };
        let mut links: Vec<String> =
            (0..related).map(|_| format!("{thing}{}", rng.u32(1..=50))).collect();
        links.push("/".to_owned());
        pages.insert(format!("{thing}{n}"), (text, links));
    }
    pages
}

/// Articles, each with links only to the next one and to its version for printers.
pub(super) fn chain(rng: &mut Rng) -> Pages {
    let id = name(rng);
    let links = |n: usize| vec![format!("/article?{id}={n}"), format!("/print?{id}={n}")];
    let mut pages = Pages::from([("/".to_owned(), ("Articles".to_owned(), links(0)))]);
    for n in 0..60 {
        let text = format!("A long text that differs in one word, which is {}", word(rng));
        let next = if n < 59 { links(n + 1) } else { Vec::new() };
        pages.insert(format!("/article?{id}={n}"), (text.clone(), next.clone()));
        pages.insert(format!("/print?{id}={n}"), (text, next));
    }
    pages
}

/// Two sections by day, most of them with the same content.
pub(super) fn calendar(rng: &mut Rng) -> Pages {
    let day = name(rng);
    let path = |section: &str, n: usize| {
        format!("/{section}?{day}=2026-{:02}-{:02}", n / 28 + 1, n % 28 + 1)
    };
    let both = |n: usize| [path("events", n), path("rooms", n)];
    let mut pages = Pages::from([("/".to_owned(), ("Days".to_owned(), both(0).to_vec()))]);
    for (n, section) in (0..112_usize).flat_map(|n| [(n, "events"), (n, "rooms")]) {
        let near = [n.saturating_sub(1), (n + 1).min(111)];
        let links = near.iter().map(|n| path(section, *n)).chain(both(n)).collect();
        let text = if n % 9 == 0 { word(rng) } else { "Nothing on this day".to_owned() };
        pages.insert(path(section, n), (text, links));
    }
    pages
}

/// Filters and a sort order, with the names in one order.
pub(super) fn facets(rng: &mut Rng) -> Pages {
    let names = [name(rng), name(rng), name(rng)];
    let path = |values: [usize; 3]| {
        let pairs = names.iter().zip(values).filter(|(_, value)| *value > 0);
        let pairs: Vec<String> = pairs.map(|(name, value)| format!("{name}={value}")).collect();
        if pairs.is_empty() { "/".to_owned() } else { format!("/?{}", pairs.join("&")) }
    };
    let mut pages = Pages::new();
    for values in (0..4).flat_map(|a| (0..4).flat_map(move |b| (0..4).map(move |c| [a, b, c]))) {
        let changed = (0..3).flat_map(|at| {
            (0..4).map(move |value| {
                let mut changed = values;
                changed[at] = value;
                path(changed)
            })
        });
        pages.insert(path(values), ("Shoes".to_owned(), changed.collect()));
    }
    pages
}

/// Each page has its own number, and there is a language in all links.
pub(super) fn numbered(rng: &mut Rng) -> Pages {
    let (number, language) = (name(rng), name(rng));
    let path = |n: usize, tongue: &str| {
        format!("/{}?{number}={n}&{language}={tongue}", "abcdefghij".split_at(n % 9).1)
    };
    let mut pages = Pages::new();
    let all = || (0..60).flat_map(|n| [(n, "de"), (n, "en")]);
    let links = |n: usize, tongue: &'static str| -> Vec<String> {
        (0..7).map(|step| path((n + step * step) % 60, tongue)).collect()
    };
    pages.insert("/".to_owned(), (String::new(), [links(0, "de"), links(1, "en")].concat()));
    for (n, tongue) in all() {
        let text = "The same in all languages".to_owned();
        pages.insert(path(n, tongue), (text, links(n + 1, tongue)));
    }
    pages
}
