//! The permissions that each line of a client needs, as the documentation lists them, and the
//! principals that may therefore send it. The table does not know how the decision is made. The
//! unit test of the module checks the decision against it, and `tests/e2e` checks the program over
//! sockets.

use tidings_protocol::Verb;

/// A line of a client, and all permissions that it needs. Of permissions with `|` between them one
/// is enough. `job:*` is the permission for all jobs; `url=` is the URL that is published, empty
/// for text.
pub(crate) struct Row(pub(crate) &'static str, pub(crate) &'static str);

/// Patterns that match `docs-1`, the name in the rows, and patterns that do not.
const PATTERNS: [&str; 8] =
    ["docs-1", "docs-*", "docs-1*", "*", "docs-2", "docs", "docs-11*", "DOCS-1"];

/// Permissions of one word.
const WORDS: [&str; 6] = ["every", "prio", "hub", "monitor", "admin", "all"];

/// URL prefixes: the URL of every row is below the first one.
const PREFIXES: [&str; 2] = ["url:http://a.example/", "url:http://b.example/"];

/// The rows of each verb. A verb without rows does not compile.
pub(crate) const fn rows(verb: Verb) -> &'static [Row] {
    match verb {
        Verb::Hello => &[Row("HELLO name=x", "")],
        Verb::Ping => &[Row("PING", "")],
        Verb::Help => &[Row("HELP", "")],
        Verb::Quit => &[Row("QUIT", "")],
        Verb::Pub => &[
            Row("PUB docs-1 http://a.example/x", "pub:docs-1 url=http://a.example/x"),
            Row("PUB docs-1 some text", "pub:docs-1 url="),
            Row("PUB docs-1 text with every=1h", "pub:docs-1 url="),
            Row("PUB docs-1 http://a.example/x y=1", "pub:docs-1 url=http://a.example/x"),
            Row(
                "PUB docs-1 http://a.example/x every=1h",
                "pub:docs-1 every url=http://a.example/x",
            ),
            Row("PUB docs-1 http://a.example/x prio=9", "pub:docs-1 prio url=http://a.example/x"),
            Row(
                "PUB docs-1 http://a.example/x job=docs-1",
                "pub:docs-1 job:docs-1 url=http://a.example/x",
            ),
            Row(
                "PUB docs-1 http://a.example/x hub=http://b.example/",
                "pub:docs-1 hub url=http://a.example/x",
            ),
            Row(
                "PUB docs-1 http://a.example/x cloud=http://b.example/",
                "pub:docs-1 hub url=http://a.example/x",
            ),
            Row("PUB docs-1 http://a.example/x pushed=1", "pub:docs-1 hub url=http://a.example/x"),
            Row(
                "PUB docs-1 http://a.example/x every=1h prio=9",
                "pub:docs-1 every prio url=http://a.example/x",
            ),
            Row("PUB hub-found http://a.example/x", "pub:hub-found hub url=http://a.example/x"),
            Row("PUB hub x", "pub:hub hub url="),
            Row("PUB hub-verify x", "pub:hub-verify hub url="),
            Row("PUB job-done docs-1 number=1", "pub:job-done job:* url="),
        ],
        Verb::Sub => &[
            Row("SUB docs-1", "sub:docs-1"),
            Row("SUB docs-1 from=first", "sub:docs-1"),
            Row("SUB docs-1 as=me takeover=yes", "sub:docs-1"),
        ],
        Verb::Seen => &[Row("SEEN docs-1 7", "sub:docs-1")],
        Verb::Unsub => &[Row("UNSUB docs-1", "sub:docs-1")],
        Verb::Join => &[Row("JOIN docs-1 credit=5", "group:docs-1")],
        Verb::Link => &[Row("LINK docs-1:1.2.3 http://a.example/", "group:docs-1")],
        Verb::Ack => &[Row("ACK docs-1:1.2.3", "group:docs-1")],
        Verb::Nack => &[Row("NACK docs-1:1.2.3 after=1s", "group:docs-1")],
        Verb::Touch => &[Row("TOUCH docs-1:1.2.3 over=yes", "group:docs-1")],
        Verb::Group => GROUP_ROWS,
        Verb::Job => &[
            Row("JOB ls", "monitor|admin"),
            Row("JOB show docs-1", "job:docs-1|monitor|admin"),
            Row("JOB wait docs-1", "job:docs-1|monitor|admin"),
            Row("JOB watch docs-1", "job:docs-1|monitor|admin"),
            Row("JOB open docs-1 max-depth=2", "job:docs-1"),
            Row("JOB open docs-1 prio=3", "job:docs-1 prio"),
            Row("JOB add docs-1 url=http://a.example/", "job:docs-1 url=http://a.example/"),
            Row(
                "JOB add docs-1 url=http://a.example/ prio=3",
                "job:docs-1 prio url=http://a.example/",
            ),
            Row("JOB set docs-1 max-depth=2", "job:docs-1"),
            Row("JOB close docs-1", "job:docs-1"),
            Row("JOB cancel docs-1", "job:docs-1"),
            Row("JOB pause docs-1", "job:docs-1"),
            Row("JOB resume docs-1", "job:docs-1"),
            Row("JOB delete docs-1", "job:docs-1"),
            Row("JOB no-such-action docs-1", "job:docs-1"),
            Row("JOB open", "admin"),
        ],
        Verb::Topic => &[
            Row("TOPIC ls", "monitor|admin"),
            Row("TOPIC show docs-1", "sub:docs-1|monitor|admin"),
            Row("TOPIC create docs-1", "admin"),
            Row("TOPIC set docs-1 sync=memory", "admin"),
            Row("TOPIC delete docs-1", "admin"),
            Row("TOPIC verify docs-1", "admin"),
            Row("TOPIC forget docs-1 as=me", "admin"),
            Row("TOPIC no-such-action docs-1", "admin"),
        ],
        Verb::Explain => &[
            Row("EXPLAIN http://a.example/", "monitor|admin"),
            Row("EXPLAIN a.example group=docs-1", "monitor|admin"),
        ],
        Verb::Stats => &[Row("STATS", "monitor|admin")],
    }
}

const GROUP_ROWS: &[Row] = &[
    Row("GROUP ls", "monitor|admin"),
    Row("GROUP show docs-1", "group:docs-1|monitor|admin"),
    Row("GROUP watch docs-1", "group:docs-1|monitor|admin"),
    Row("GROUP tasks docs-1", "group:docs-1|monitor|admin"),
    Row("GROUP keys docs-1", "group:docs-1|monitor|admin"),
    Row("GROUP schedules docs-1", "group:docs-1|monitor|admin"),
    Row("GROUP members docs-1", "group:docs-1|monitor|admin"),
    Row("GROUP rules docs-1", "group:docs-1|monitor|admin"),
    Row("GROUP dead docs-1", "group:docs-1|monitor|admin"),
    // The group then reads `new-url`.
    Row("GROUP create docs-1 delay=0s", "admin sub:new-url"),
    Row("GROUP create docs-1 topics=docs-1,docs-1 key=none", "admin sub:docs-1"),
    Row("GROUP set docs-1 topics=docs-1", "admin sub:docs-1"),
    Row("GROUP set docs-1 delay=0s", "admin"),
    Row("GROUP pause docs-1", "admin"),
    Row("GROUP resume docs-1", "admin"),
    Row("GROUP purge docs-1", "admin"),
    Row("GROUP bump docs-1 prio=1", "admin prio"),
    Row("GROUP drain docs-1 member=crawler-3", "admin"),
    Row("GROUP undrain docs-1 member=crawler-3", "admin"),
    Row("GROUP rule docs-1 key=a.example block=yes", "admin"),
    Row("GROUP unrule docs-1 key=a.example", "admin"),
    Row("GROUP retry docs-1 all=yes", "admin"),
    Row("GROUP drop docs-1 all=yes", "admin"),
    Row("GROUP delete docs-1", "admin"),
    Row("GROUP no-such-action docs-1", "admin"),
];

/// Every permission.
pub(crate) fn all_permissions() -> Vec<String> {
    let kinds = ["pub", "sub", "group", "job"].iter();
    let patterns = kinds.flat_map(|kind| PATTERNS.map(|pattern| format!("{kind}:{pattern}")));
    patterns.chain(WORDS.into_iter().chain(PREFIXES).map(str::to_owned)).collect()
}

/// What a principal is allowed, and what it is denied.
#[derive(Debug, Clone, Default)]
pub(crate) struct Grants {
    pub(crate) allow: Vec<String>,
    pub(crate) deny: Vec<String>,
}

impl Grants {
    /// Each permission alone, together with others that a row may need, and denied to a principal
    /// that is allowed everything.
    pub(crate) fn all() -> Vec<Self> {
        let with = |besides: &'static str| {
            let words = || besides.split_whitespace().map(str::to_owned);
            all_permissions().into_iter().map(move |permission| Self {
                allow: words().chain([permission]).collect(),
                deny: Vec::new(),
            })
        };
        let without = all_permissions()
            .into_iter()
            .map(|permission| Self { allow: vec!["all".to_owned()], deny: vec![permission] });
        ["", "pub:*", "sub:*", "admin", "job:docs-1"]
            .into_iter()
            .flat_map(with)
            .chain(without)
            .collect()
    }

    /// Whether it satisfies what a row needs.
    pub(crate) fn satisfies(&self, needs: &str) -> bool {
        needs.split_whitespace().all(|need| {
            if let Some(target) = need.strip_prefix("url=") {
                return self.allows_url(target);
            }
            let any = |is: fn(&str, &str) -> bool, permission: &str| {
                need.split('|').any(|one| is(permission, one))
            };
            // A principal that is denied `admin` may still read.
            let counts = |permission: &str| permission != "admin" || need == "admin";
            self.allow.iter().any(|permission| any(grants, permission))
                && !self.deny.iter().any(|permission| counts(permission) && any(denies, permission))
        })
    }

    /// Whether a URL may be published: it is below an allowed prefix, if there is one, and below no
    /// denied one.
    fn allows_url(&self, target: &str) -> bool {
        let prefixes = |permissions: &[String]| -> Vec<String> {
            permissions
                .iter()
                .filter_map(|permission| permission.strip_prefix("url:"))
                .map(str::to_owned)
                .collect()
        };
        let (allow, deny) = (prefixes(&self.allow), prefixes(&self.deny));
        let lies_below = |prefix: &String| target.starts_with(prefix.as_str());
        allow.is_empty() && deny.is_empty()
            || !target.is_empty()
                && (allow.is_empty() || allow.iter().any(lies_below))
                && !deny.iter().any(lies_below)
    }
}

/// Whether a permission covers the needed one.
fn grants(permission: &str, need: &str) -> bool {
    permission == "all" || permission == need || matches_name(permission, need)
}

/// Whether denying a permission takes away the needed one, or a part of it.
fn denies(permission: &str, need: &str) -> bool {
    grants(permission, need) || need == "job:*" && permission.starts_with("job:")
}

/// Whether the pattern of a permission matches a name.
fn matches_name(permission: &str, need: &str) -> bool {
    let (Some((kind, pattern)), Some((of, name))) =
        (permission.split_once(':'), need.split_once(':'))
    else {
        return false;
    };
    let fits = match pattern.strip_suffix('*') {
        Some("") => true,
        Some(start) => name != "*" && name.starts_with(start),
        None => name == pattern,
    };
    kind == of && fits
}

/// Whether a line is allowed over `ZeroMQ`: publishing only, and without privileged attributes.
pub(crate) fn zmq_allows(verb: Verb, line: &str) -> bool {
    let powers = [" every=", " prio=", " job=", " hub=", " cloud=", " pushed="];
    let has_power = powers.iter().any(|key| line.contains(key)) && !line.contains("text with")
        || line.starts_with("PUB hub")
        || line.starts_with("PUB job-done");
    match verb {
        Verb::Hello | Verb::Ping | Verb::Help | Verb::Quit => true,
        Verb::Pub => !has_power,
        _ => false,
    }
}
