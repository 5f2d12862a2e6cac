//! Recognizes session ids in the queries of a site by their behaviour: the links of each page have
//! new values, and a page is the same with any value.
//!
//! Names and the form of values do not matter. Each parameter of the site's links goes through
//! these states:
//!
//! ```text
//!            new values in the links of 3 pages           3 equal readings, of 2 pages at least
//!   Watched ────────────────────────────────▶ Volatile ────────────────────────────────▶ Session
//!      │    ◀────────────────────────────────    │
//!      │       too many doubts for that          │  8 different readings
//!      │                                         │
//!      └──────────────▶ Meaningful ◀─────────────┘
//!         8 doubts: pages with earlier values,
//!         or with several values for one target
//! ```
//!
//! Links alone tell most honest parameters from session ids: a page number, an id, a sort order or
//! a language repeats on other pages. Pages are compared for volatile parameters only, so an honest
//! site needs no memory for that.
//!
//! Evidence must outweigh doubts by `SESSION_EVIDENCE_PER_DOUBT`, so a link with an old session
//! id that a visitor pasted into a text does not matter. Pure: [`Sessions::note_links`] and
//! [`Sessions::note_page`] change it, in this order for each page.

use std::collections::{BTreeMap, VecDeque};

use hashbrown::HashMap;
use tidings_documents::page::PageLink;
use tidings_protocol::CanonicalUrl;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::PageReading;
use super::shape::params;
use crate::traps::TRAP_ENTRIES_MAX;

/// This many pages with new values in their links, and as many equal readings, show that a
/// parameter is a session id. Two could be chance.
pub(crate) const SESSION_EVIDENCE_MIN: u16 = 3;
/// .. and this many for each page or reading against it: one forum link may contain an old session
/// id.
const SESSION_EVIDENCE_PER_DOUBT: u16 = 4;
/// After this many different readings, or pages with earlier values, a parameter is final as
/// meaningful.
const SESSION_DOUBTS_MAX: u16 = 8;
/// Parameter names tracked on one site. The largest search forms have some twenty; later names are
/// ignored.
pub(crate) const SESSION_PARAMS_MAX: usize = 32;
/// Names of one site that may be session ids at a time, recognized ones included. A further name
/// waits until there is room: a site has one, or two together with a timestamp.
const SESSION_VOLATILE_MAX: usize = 4;
/// Links with a query that are examined on one page. A session id is in all of them.
const SESSION_LINKS_MAX: usize = 128;
/// Values remembered of one name, to notice repetition: those of the last 256 pages, at one value a
/// page. An older value counts as new.
const SESSION_VALUES_MAX: usize = 256;

/// The parameters of one site, and the evidence about them.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    /// `<= SESSION_PARAMS_MAX`. Later names are ignored.
    params: Vec<SessionParam>,
    /// Pages that were read, by their URL without volatile parameters; empty while there are none.
    /// `<= TRAP_ENTRIES_MAX`: then all are dropped, and each may be read once more under a session
    /// id.
    views: HashMap<u64, ReadView>,
}

/// One parameter.
#[derive(Debug, Default)]
struct SessionParam {
    name: u64,
    state: ParamState,
    /// Its index in [`Values`], if it is volatile; different for all that are volatile at a time.
    slot: usize,
    /// Pages with new values in their links, against pages that speak against a session id.
    pages: Evidence,
    /// Pages that were read again with another value: equal and different ones.
    readings: Evidence,
    /// The target of the first equal reading.
    first_equal: Option<u64>,
    /// Whether there was an equal reading of another target.
    is_general: bool,
    /// Values in the links of the last page that had other values than the page before; `<=
    /// SESSION_LINKS_MAX` pairs.
    latest: Vec<u32>,
    /// Values of the pages before that; `<= SESSION_VALUES_MAX`, the oldest first.
    earlier: VecDeque<u32>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum ParamState {
    #[default]
    Watched,
    Volatile,
    /// Final: removed from links.
    Session,
    /// Final: kept in links.
    Meaningful,
}

#[derive(Debug, Default, Clone, Copy)]
struct Evidence {
    found: u16,
    doubts: u16,
}

/// The last reading of a page.
#[derive(Debug, Clone, Copy)]
struct ReadView {
    values: Values,
    /// Digest of its content; `None` if unknown, or without a volatile parameter.
    digest: Option<u32>,
}

/// The values of volatile parameters, each in its own slot; 0 for a missing one.
type Values = [u32; SESSION_VOLATILE_MAX];

impl Evidence {
    fn note(&mut self, is_found: bool) {
        let count = if is_found { &mut self.found } else { &mut self.doubts };
        *count = count.saturating_add(1);
    }

    fn strength(self) -> i32 {
        i32::from(self.found) - i32::from(SESSION_EVIDENCE_PER_DOUBT) * i32::from(self.doubts)
    }

    fn is_enough(self) -> bool {
        self.found >= SESSION_EVIDENCE_MIN && self.found / SESSION_EVIDENCE_PER_DOUBT >= self.doubts
    }
}

impl Sessions {
    /// Adds the values in the links of a page. Links to other sites do not count.
    pub(super) fn note_links(&mut self, page: &CanonicalUrl<'_>, links: &[PageLink]) {
        // In the order of the indexes, which is that of the first occurrence.
        let mut found = BTreeMap::<usize, Vec<(u64, u32)>>::new();
        let with_query = links.iter().filter(|link| link.url.contains('?'));
        let links = with_query.filter_map(|link| CanonicalUrl::parse(&link.url).ok());
        let links = links.filter(|link| link.authority() == page.authority());
        for link in links.take(SESSION_LINKS_MAX) {
            for (name, value) in params(&link) {
                let Some(at) = self.watched(name) else { continue };
                let target =
                    fingerprint_without(&link, |other| other == name || self.is_volatile(other));
                found.entry(at).or_default().push((target, value_fingerprint(value)));
            }
        }
        for (at, links) in found {
            let place = self.free_slot();
            let param = &mut self.params[at];
            let own = params(page).find(|(name, _)| param.is(name));
            let was_volatile = param.is_volatile();
            param.note_links(own.map(|(_, value)| value_fingerprint(value)), links);
            match (was_volatile, param.is_volatile()) {
                (true, false) => self.compare_again(),
                (false, true) => match place {
                    Some(place) => param.slot = place,
                    None => param.state = ParamState::Watched,
                },
                _ => {}
            }
        }
    }

    /// An index in [`Values`] that is not in use.
    fn free_slot(&self) -> Option<usize> {
        let is_taken = |place: &usize| {
            self.params.iter().any(|param| param.is_volatile() && param.slot == *place)
        };
        (0..SESSION_VOLATILE_MAX).find(|place| !is_taken(place))
    }

    /// Adds the content of a page, if it is evidence about a volatile parameter. `None`: unchanged
    /// content. Returns the names that this page has proved to be session ids.
    pub(super) fn note_page(
        &mut self,
        url: &CanonicalUrl<'_>,
        reading: Option<&PageReading<'_>>,
    ) -> Vec<String> {
        if !self.params.iter().any(SessionParam::is_volatile) {
            return Vec::new();
        }
        let target = fingerprint_without(url, |name| self.is_volatile(name));
        let values = self.values(url);
        let with_values = reading.filter(|_| values != Values::default());
        let digest = with_values.map(|reading| self.digest(url, reading));
        if self.views.len() == TRAP_ENTRIES_MAX {
            self.views.clear();
        }
        if digest.is_none() {
            self.views.entry(target).or_insert(ReadView { values, digest });
            return Vec::new();
        }
        let before = self.views.insert(target, ReadView { values, digest });
        let Some(before) = before.filter(|view| view.digest.is_some()) else { return Vec::new() };
        let is_open = |param: &&SessionParam| param.state == ParamState::Volatile;
        let has_changed = |param: &&SessionParam| {
            let value = values[param.slot];
            value != 0 && value != before.values[param.slot]
        };
        let changed = self.params.iter().filter(is_open).filter(has_changed);
        let is_equal = before.digest == digest;
        let meant = params_meant(changed, is_equal);
        let found = self.note_reading(&meant, target, is_equal);
        let names = params(url)
            .map(|(name, _)| name)
            .filter(|name| found.contains(&name_fingerprint(name)));
        names.map(str::to_owned).collect()
    }

    /// Adds a reading of a page with other values of these parameters, equal or not. Returns those
    /// that are proved to be session ids.
    fn note_reading(&mut self, names: &[u64], target: u64, is_equal: bool) -> Vec<u64> {
        let mut known = Vec::new();
        for name in names {
            let param = self.params.iter_mut().find(|param| param.name == *name);
            match param.map(|param| param.note_reading(target, is_equal)) {
                Some(ParamState::Session) => known.push(*name),
                Some(ParamState::Meaningful) => self.compare_again(),
                _ => {}
            }
        }
        known
    }

    /// A parameter may be meaningful after all, so the comparisons so far may be of different
    /// pages: drops them.
    fn compare_again(&mut self) {
        self.views.clear();
        for param in self.params.iter_mut().filter(|param| !param.is_settled()) {
            (param.readings, param.first_equal) = (Evidence::default(), None);
            param.is_general = false;
        }
    }

    /// Whether a URL has a session id, and its page was read already under another URL.
    pub(super) fn is_copy(&self, url: &CanonicalUrl<'_>) -> bool {
        let states = || params(url).filter_map(|(name, _)| self.state(name));
        // A parameter that is still volatile may lead to another page.
        if states().all(|state| state != ParamState::Session)
            || states().any(|state| state == ParamState::Volatile)
        {
            return false;
        }
        let view = self.views.get(&fingerprint_without(url, |name| self.is_volatile(name)));
        // The task of a page that was read may be repeated.
        view.is_some_and(|view| view.values != self.values(url))
    }

    /// A URL without its session ids; `None` if it has none.
    pub(super) fn strip(&self, url: &CanonicalUrl<'_>) -> Option<String> {
        let is_session = |name: &str| self.state(name) == Some(ParamState::Session);
        if !params(url).any(|(name, _)| is_session(name)) {
            return None;
        }
        let (place, query) = url.as_str().split_once('?')?;
        let is_kept = |pair: &&str| pair.is_empty() || !is_session(name_of(pair));
        let left: Vec<&str> = query.split('&').filter(is_kept).collect();
        let left = left.join("&");
        Some(if left.is_empty() { place.to_owned() } else { format!("{place}?{left}") })
    }

    /// Memory of its tables, in bytes.
    pub(super) fn bytes(&self) -> usize {
        let values = |param: &SessionParam| param.latest.capacity() + param.earlier.capacity();
        let values: usize = self.params.iter().map(values).sum();
        self.views.allocation_size()
            + self.params.capacity() * size_of::<SessionParam>()
            + values * size_of::<u32>()
    }

    /// The index of a name that is not final; adds the name if there is room.
    fn watched(&mut self, name: &str) -> Option<usize> {
        match self.params.iter().position(|param| param.is(name)) {
            Some(at) => Some(at).filter(|at| !self.params[*at].is_settled()),
            None if self.params.len() == SESSION_PARAMS_MAX => None,
            None => {
                self.params.push(SessionParam::new(name));
                Some(self.params.len() - 1)
            }
        }
    }

    fn state(&self, name: &str) -> Option<ParamState> {
        self.param(name).map(|param| param.state)
    }

    fn param(&self, name: &str) -> Option<&SessionParam> {
        if self.params.is_empty() {
            return None;
        }
        let name = name_fingerprint(name);
        self.params.iter().find(|param| param.name == name)
    }

    /// The values of the volatile parameters of a URL.
    fn values(&self, url: &CanonicalUrl<'_>) -> Values {
        let mut values = Values::default();
        for (name, value) in params(url) {
            if let Some(param) = self.param(name).filter(|param| param.is_volatile()) {
                // Of several parameters with one name the last counts.
                values[param.slot] = value_fingerprint(value).max(1);
            }
        }
        values
    }

    fn is_volatile(&self, name: &str) -> bool {
        matches!(self.state(name), Some(ParamState::Volatile | ParamState::Session))
    }

    /// A digest of the title, the words and the targets of all links, without volatile parameters.
    fn digest(&self, page: &CanonicalUrl<'_>, reading: &PageReading<'_>) -> u32 {
        let mut digest = xxh3_64(reading.title.unwrap_or_default().as_bytes());
        digest = match reading.words {
            Some(words) => xxh3_64_with_seed(&words.to_be_bytes(), digest),
            None => xxh3_64_with_seed(reading.body, digest),
        };
        for link in reading.links {
            let url = CanonicalUrl::parse(&link.url).ok();
            let own = url.filter(|url| url.authority() == page.authority());
            let target = match own {
                Some(url) => fingerprint_without(&url, |name| self.is_volatile(name)),
                None => xxh3_64(link.url.as_bytes()),
            };
            digest = xxh3_64_with_seed(&target.to_be_bytes(), digest);
        }
        low(digest)
    }
}

impl SessionParam {
    fn new(name: &str) -> Self {
        Self { name: name_fingerprint(name), ..Self::default() }
    }

    fn is(&self, name: &str) -> bool {
        self.name == name_fingerprint(name)
    }

    fn is_volatile(&self) -> bool {
        matches!(self.state, ParamState::Volatile | ParamState::Session)
    }

    fn is_settled(&self) -> bool {
        matches!(self.state, ParamState::Session | ParamState::Meaningful)
    }

    /// Adds the targets and values of the links of a page. `own`: the value in the URL of the page.
    ///
    /// One target with several values is a list. Repeated values speak for a meaning, or for a page
    /// that is read a second time. Values of the page itself, or of the page before it, prove
    /// nothing yet: a server may continue a session, and two pages may be read in the same second.
    fn note_links(&mut self, own: Option<u32>, mut links: Vec<(u64, u32)>) {
        links.sort_unstable();
        links.dedup();
        let (mut targets, mut lists) = (0, 0);
        for target in links.chunk_by(|one, other| one.0 == other.0) {
            targets += 1;
            lists += usize::from(target.len() > 1);
        }
        let is_current = |value: u32| own == Some(value) || self.latest.contains(&value);
        let (mut current, mut again) = (0, 0);
        for (_, value) in &links {
            if is_current(*value) {
                current += 1;
            } else if self.earlier.contains(value) {
                again += 1;
            }
        }
        // A few may be exceptions. With a session id for each link, a target that a page links to
        // twice looks like a list.
        let is_doubtful = 2 * lists > targets || 4 * again > links.len();
        if !is_doubtful && 4 * current > links.len() {
            return;
        }
        if is_doubtful || targets > 1 {
            self.pages.note(!is_doubtful);
        }
        self.earlier.extend(self.latest.drain(..));
        self.earlier.drain(..self.earlier.len().saturating_sub(SESSION_VALUES_MAX));
        self.latest.extend(links.into_iter().map(|(_, value)| value));
        self.latest.sort_unstable();
        self.latest.dedup();
        if self.pages.is_enough() {
            self.state = ParamState::Volatile;
        } else if self.pages.doubts >= SESSION_DOUBTS_MAX {
            self.settle(ParamState::Meaningful);
        } else {
            self.state = ParamState::Watched;
        }
    }

    /// Adds the comparison of two readings with different values; returns the new state.
    fn note_reading(&mut self, target: u64, is_equal: bool) -> ParamState {
        self.readings.note(is_equal);
        if is_equal {
            self.is_general |= *self.first_equal.get_or_insert(target) != target;
        }
        if self.readings.doubts >= SESSION_DOUBTS_MAX {
            self.settle(ParamState::Meaningful);
        } else if self.pages.is_enough() && self.readings.is_enough() && self.is_general {
            self.settle(ParamState::Session);
        }
        self.state
    }

    fn settle(&mut self, state: ParamState) {
        self.state = state;
        (self.latest, self.earlier) = (Vec::new(), VecDeque::new());
    }
}

/// The names of the parameters that a reading counts for. When several values have changed, an
/// equal reading counts for the parameter with the strongest evidence in links, and a different one
/// against the parameter with the weakest. So a session id, which is on every page, is not blamed
/// for a page number beside it.
fn params_meant<'a>(
    changed: impl Iterator<Item = &'a SessionParam> + Clone,
    is_equal: bool,
) -> Vec<u64> {
    let strengths = changed.clone().map(|param| param.pages.strength());
    let strength = if is_equal { strengths.max() } else { strengths.min() };
    let meant = changed.filter(|param| Some(param.pages.strength()) == strength);
    meant.map(|param| param.name).collect()
}

/// The name of a pair, as in [`params`].
fn name_of(pair: &str) -> &str {
    pair.split_once('=').map_or("", |(name, _)| name)
}

/// The fingerprint of a URL without some parameters.
fn fingerprint_without(url: &CanonicalUrl<'_>, is_left_out: impl Fn(&str) -> bool) -> u64 {
    let mut text = String::with_capacity(url.path_and_query().len());
    text.push_str(url.path());
    for (name, value) in params(url).filter(|(name, _)| !is_left_out(name)) {
        text.extend(["&", name, "=", value]);
    }
    xxh3_64(text.as_bytes())
}

fn name_fingerprint(name: &str) -> u64 {
    xxh3_64(name.as_bytes())
}

fn value_fingerprint(text: &str) -> u32 {
    low(xxh3_64(text.as_bytes()))
}

fn low(print: u64) -> u32 {
    let [_, _, _, _, low @ ..] = print.to_be_bytes();
    u32::from_be_bytes(low)
}
