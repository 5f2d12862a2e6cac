//! Lists in parts: walks over entries, keys, schedules, members and jobs, while they change.

use std::collections::BTreeSet;

use tidings_protocol::status::ListEnd;
use tidings_protocol::{
    EntrySelection, GroupAction, GroupCommand, JobAction, JobCommand, MemberId, Outcome, RetryMode,
    TaskAction,
};

use super::bench::{A, AnswerText, B, Bench, NO_HOLD, group_command, reply_of};
use super::simulation::seeds;
use crate::commands::{group_input, job_input};
use crate::entry::EntryId;
use crate::fuzzing::simulated_pages::TINY;
use crate::{ConnId, Input, JobOperation, Operation, Requester};

/// Simulated walks of a test run.
const WALKS: u64 = 300;

impl Bench {
    /// A list of the group, or with [`GroupAction::Ls`] of its jobs.
    fn list(&mut self, action: GroupAction<'_>, settings: &[(&str, &str)]) -> AnswerText {
        let asked = A.requester();
        let input = if action == GroupAction::Ls {
            job_input(asked, &JobCommand::unnamed(JobAction::Ls, settings.to_vec())).unwrap().1
        } else {
            group_input(asked, &GroupCommand { action, ..group_command(settings) }).unwrap()
        };
        self.feed(input);
        self.answers.pop().unwrap().unwrap()
    }

    /// The first words of all lines of a walk, and the number of its parts. `between` is called
    /// after each part.
    fn walk(
        &mut self,
        action: GroupAction<'_>,
        settings: &[(&str, &str)],
        mut between: impl FnMut(&mut Self),
    ) -> (Vec<String>, usize) {
        let (mut words, mut next, mut parts) = (Vec::new(), Some(0), 0);
        while let Some(after) = next {
            let after = after.to_string();
            let settings = [settings, &[("after", after.as_str())]].concat();
            let answer = self.list(action, &settings);
            let end = ListEnd::parse(&answer.ok);
            assert_eq!((end.matched, end.listed), (None, answer.lines.len() as u64));
            assert!(end.next.is_none_or(|next| next > after.parse().unwrap()), "{}", answer.ok);
            words.extend(answer.lines.iter().map(|line| first_word(line)));
            (next, parts) = (end.next, parts + 1);
            assert!(parts < 10_000, "the walk ends");
            between(self);
        }
        (words, parts)
    }

    /// The entries that are not finished, with the dead ones.
    fn unfinished(&self) -> BTreeSet<EntryId> {
        let frontier = &self.group.state.frontier();
        let active = frontier.active().map(|live| live.entry.admitted.id);
        let ids = active.chain(frontier.dormant().iter().map(|dormant| dormant.id));
        let dead = self.group.state.dead_letters().iter().map(|dead| dead.entry.admitted.id);
        ids.chain(dead).collect()
    }

    /// Something that happens to the group between two parts.
    fn change(&mut self, rng: &mut fastrand::Rng, published: &mut u64) {
        match rng.u8(..10) {
            0..3 => {
                *published += 1;
                let after = if rng.u8(..5) == 0 { " after=1m" } else { "" };
                let (host, page) = (rng.u8(..20), *published);
                self.publish(&format!("http://h{host}.org/{}/{page}{after}", page % 2));
            }
            3 => self.join(A, rng.u32(..5)),
            4 => self.wait(rng.u64(..5_000)),
            5 => self.operate(Operation::Retry(EntrySelection::default())),
            _ => {
                if self.tasks.is_empty() {
                    return;
                }
                let (_, task) = self.tasks.swap_remove(rng.usize(..self.tasks.len()));
                match rng.u8(..3) {
                    0 => self.ack(A, &task.id, Outcome::Done, &[("http://h1.org/link", false)]),
                    1 => self.nack(A, &task.id, RetryMode::Counted { after_ms: None }),
                    _ => self.nack(A, &task.id, RetryMode::Counted { after_ms: Some(60_000) }),
                }
            }
        }
        self.answers.clear();
    }
}

impl Bench {
    /// The items that a list has now: the first words of their lines, and what tells items with the
    /// same first word apart.
    fn items(&self, list: GroupAction<'_>) -> BTreeSet<(String, u128)> {
        let state = &self.group.state;
        let (frontier, leases) = (state.frontier(), state.leases());
        match list {
            GroupAction::Keys => {
                let waiting = frontier.keys().ids().into_iter().map(|key| &frontier.keys()[key]);
                let waiting = waiting.filter(|key| key.has_waiting());
                waiting.map(|key| (key.name().to_string(), 0)).collect()
            }
            GroupAction::Schedules => {
                state.schedules().iter().map(|schedule| (schedule.text.to_string(), 0)).collect()
            }
            GroupAction::Members => {
                leases.members().iter().map(|(id, _)| (id.short(), id.0)).collect()
            }
            _ => state
                .jobs()
                .iter()
                .map(|job| (job.name.to_string(), job.id.number.into()))
                .collect(),
        }
    }

    /// Something that changes keys, schedules, members or jobs.
    fn change_lists(&mut self, rng: &mut fastrand::Rng) {
        let (number, job) = (rng.u64(..40), format!("j{}", rng.u8(..30)));
        let requester = |number| {
            // Two members have the same first digits.
            let member = MemberId((u128::from(number / 2) << 96) + u128::from(number));
            Requester { conn: ConnId(number), member, ..A.requester() }
        };
        match rng.u8(..12) {
            0..3 => self.publish(&format!("http://h{number}.org/{}", rng.u8(..3))),
            3 | 4 => self.publish(&format!("http://s{number}.org/ every=1m")),
            5 => self.publish(&format!("http://s{number}.org/ every=0")),
            6 => self.join_on(requester(number), rng.u32(..3), None),
            7 => self.feed(Input::Disconnected { conn: ConnId(number) }),
            8 => self.open(&job, &[]),
            9 | 10 => {
                let actions = [JobOperation::Close, JobOperation::Cancel, JobOperation::Delete];
                self.with_job(&job, rng.choice(actions).unwrap());
            }
            _ => {
                self.wait(rng.u64(..20_000));
                for (conn, task) in std::mem::take(&mut self.tasks) {
                    let reply = reply_of(&task.id, TaskAction::Ack(Outcome::Done), NO_HOLD).into();
                    self.feed(Input::Reply { requester: requester(conn.0), reply });
                }
            }
        }
        self.answers.clear();
    }
}

fn first_word(line: &str) -> String {
    line.split(' ').next().unwrap_or_default().to_owned()
}

/// An entry that is there from the begin of a walk to its end is listed exactly once, and no entry
/// is listed twice, even if items come and go between the parts.
// PROTOCOL: G11
#[test]
#[expect(clippy::print_stdout, reason = "prints the seed")]
fn a_walk_lists_every_entry_that_stays_exactly_once() {
    let seed = seeds().start;
    println!("TIDINGS_SIM_SEED={seed}");
    let (mut stayed, mut ended, mut came, mut dead) = (0, 0, 0, 0);
    for walk in 0..WALKS {
        let mut rng = fastrand::Rng::with_seed(seed.wrapping_add(walk));
        let mut bench = Bench::new(&[("delay", "0"), ("max-attempts", "2"), ("backoff", "0")]);
        if rng.bool() {
            bench.group.set_paging(TINY);
        }
        bench.group.state.config_mut().looked_at_max = rng.usize(1..40);
        bench.join(A, 3);
        let mut published = 0;
        for _ in 0..rng.u32(..200) {
            bench.change(&mut rng, &mut published);
        }
        let first = bench.unfinished();
        let limit = rng.u64(1..8).to_string();
        let changes = rng.u32(..6);
        // A walk with few lines in each part would not end if entries came faster.
        let mut left = 200;
        let (listed, _) = bench.walk(GroupAction::Tasks, &[("limit", &limit)], |bench| {
            for _ in 0..changes.min(left) {
                bench.change(&mut rng, &mut published);
                left -= 1;
            }
        });
        let ids: Vec<EntryId> = listed.iter().map(|id| id.parse().unwrap()).collect();
        assert!(ids.is_sorted_by(|one, next| one < next), "walk {walk}: {ids:?}");
        let last = bench.unfinished();
        for id in first.intersection(&last) {
            assert!(ids.contains(id), "walk {walk}: {id} is missing in {ids:?}");
            stayed += 1;
        }
        ended += first.difference(&last).count();
        came += last.difference(&first).count();
        dead += bench.group.state.dead_letters().len();
    }
    assert!(
        stayed > 500 && ended > 100 && came > 100 && dead > 50,
        "{stayed} {ended} {came} {dead}"
    );
}

/// The same for keys, schedules, members and jobs; their numbers do not follow from their order.
// PROTOCOL: G11
#[test]
#[expect(clippy::print_stdout, reason = "prints the seed")]
fn a_walk_lists_every_key_schedule_member_and_job_that_stays_exactly_once() {
    let seed = seeds().start;
    println!("TIDINGS_SIM_SEED={seed}");
    for list in [GroupAction::Keys, GroupAction::Schedules, GroupAction::Members, GroupAction::Ls] {
        let (mut stayed, mut ended, mut came) = (0, 0, 0);
        for walk in 0..WALKS {
            let mut rng = fastrand::Rng::with_seed(seed.wrapping_add(walk));
            let mut bench = Bench::new(&[("delay", "0")]);
            bench.group.state.config_mut().looked_at_max = rng.usize(1..20);
            bench.group.state.config_mut().finished_jobs_max = 5;
            for _ in 0..rng.u32(..200) {
                bench.change_lists(&mut rng);
            }
            let first = bench.items(list);
            let (mut lasting, mut all) = (first.clone(), first.clone());
            let (limit, changes) = (rng.u64(1..8).to_string(), rng.u32(..8));
            let (listed, _) = bench.walk(list, &[("limit", &limit)], |bench| {
                for _ in 0..changes {
                    bench.change_lists(&mut rng);
                    let now = bench.items(list);
                    lasting.retain(|item| now.contains(item));
                    all.extend(now);
                }
            });
            for (word, _) in &lasting {
                let count = |items: &BTreeSet<(String, u128)>| {
                    items.iter().filter(|(other, _)| other == word).count()
                };
                let times = listed.iter().filter(|other| *other == word).count();
                let expected = count(&lasting)..=count(&all);
                assert!(expected.contains(&times), "walk {walk}: {word} {times} times: {listed:?}");
            }
            stayed += lasting.len();
            ended += first.difference(&lasting).count();
            came += all.difference(&first).count();
        }
        assert!(stayed > 500 && ended > 10 && came > 50, "{list:?}: {stayed} {ended} {came}");
    }
}

/// A walk with a pattern lists the entries that it matches, wherever their texts are.
// PROTOCOL: G12
#[test]
fn patterns_are_compared_in_memory_and_on_the_disk() {
    for paged in [false, true] {
        let mut bench = Bench::new(&[("delay", "0"), ("max-attempts", "1")]);
        if paged {
            bench.group.set_paging(TINY);
        }
        bench.join(A, 1);
        bench.kill("http://dead.org/1/x");
        bench.publish("http://held.org/1/x");
        for n in 0..400 {
            bench.publish(&format!("http://h{}.org/{}/{n}", n % 7, n % 4));
        }
        assert_eq!(bench.pages.bytes() > 0, paged);
        let all = bench.list(GroupAction::Tasks, &[("match", "/1/"), ("limit", "1000")]);
        assert_eq!(all.ok, "crawlers matched=102 listed=102");
        assert!(all.lines.iter().all(|line| line.contains(".org/1/")), "{all:?}");
        let settings = [("match", "/0/*,http://h3.org/1/"), ("limit", "7")];
        let (listed, parts) = bench.walk(GroupAction::Tasks, &settings, |_| ());
        let of_h3 = (0..400).filter(|n| n % 7 == 3 && n % 4 == 1).count();
        assert_eq!(listed.len(), 100 + of_h3);
        assert_eq!(parts, listed.len().div_ceil(7));
        let dead = bench.list(GroupAction::Tasks, &[("match", "*/1/x$"), ("state", "dead")]);
        assert_eq!((dead.lines.len(), dead.ok.as_str()), (1, "crawlers matched=1 listed=1"));
        assert_eq!(
            bench.list(GroupAction::Tasks, &[("match", "/2"), ("entry", "1")]).lines.len(),
            0
        );
        let none = bench.list(GroupAction::Tasks, &[("match", "/2"), ("state", "processing")]);
        assert_eq!(none.ok, "crawlers matched=0 listed=0");
    }
}

/// Nothing else happens in a group while it looks at entries, so each part looks at a limited
/// number of them, even if it finds nothing.
// PROTOCOL: G11
#[test]
fn a_part_looks_at_a_limited_number_of_entries() {
    let mut bench = Bench::new(&[]);
    bench.group.state.config_mut().looked_at_max = 80;
    for n in 1..=400 {
        let after = if n % 2 == 0 { " after=1h" } else { "" };
        bench.publish(&format!("http://h{n}.org/{after}"));
    }
    let next = |answer: &AnswerText| ListEnd::parse(&answer.ok).next;
    let none = [("key", "other.org")];
    let first = bench.list(GroupAction::Tasks, &none);
    assert_eq!(first.ok, "crawlers listed=0 next=80", "`matched` is not known");
    assert_eq!(bench.walk(GroupAction::Tasks, &none, |_| ()), (vec![], 5));
    assert_eq!(bench.walk(GroupAction::Tasks, &[("state", "dead")], |_| ()), (vec![], 1));
    // To tell what is queued from what is pending takes longer than to see that neither is held.
    for (state, looked_at) in [("processing", 80), ("retry", 80), ("queued", 16)] {
        let state = [none[0], ("state", state)];
        assert_eq!(next(&bench.list(GroupAction::Tasks, &state)), Some(looked_at));
    }
    // A text takes longer.
    let by_text = bench.list(GroupAction::Tasks, &[("match", "http://other.org/")]);
    assert_eq!(next(&by_text), Some(10));
    // More patterns, or longer texts, take longer still.
    let many = vec!["http://other.org/"; 64].join(",");
    assert_eq!(next(&bench.list(GroupAction::Tasks, &[("match", &many)])), Some(3));
    let nothing = bench.list(GroupAction::Tasks, &[none[0], ("limit", "0")]);
    assert_eq!(nothing.ok, "crawlers listed=0", "a walk without lines would not end");
    let job = [("job", "docs")];
    bench.open("docs", &[]);
    assert_eq!(next(&bench.list(GroupAction::Keys, &[job[0], ("after", "0")])), Some(80));
    assert_eq!(bench.walk(GroupAction::Keys, &job, |_| ()).1, 5);
    // The longest of those that were looked at.
    let busiest = bench.list(GroupAction::Keys, &[("limit", "3")]);
    assert_eq!((busiest.lines.len(), busiest.ok.as_str()), (3, "crawlers listed=3"));
    bench.group.state.config_mut().looked_at_max = 800;
    let busiest = bench.list(GroupAction::Keys, &[("limit", "3")]);
    assert_eq!(busiest.ok, "crawlers matched=200 listed=3");
    let all = bench.list(GroupAction::Tasks, &none);
    assert_eq!(all.ok, "crawlers matched=0 listed=0");
}

// PROTOCOL: G11
#[test]
fn texts_and_patterns_limit_what_a_part_looks_at() {
    let mut bench = Bench::new(&[]);
    bench.open("docs", &[("scope", "any")]);
    for n in 1..=40 {
        bench.publish(&format!("http://j{n}.org/ job=docs"));
        bench.publish(&format!("http://h{n}.org/{} every=1h", "x".repeat(4000)));
    }
    let many = vec!["http://other.org/"; 64].join(",");
    let (one, many) = (("match", "http://other.org/"), ("match", &*many));
    bench.group.state.config_mut().looked_at_max = 40 * 80;
    for action in [GroupAction::Tasks, GroupAction::Schedules] {
        assert_eq!(bench.list(action, &[one]).ok, "crawlers matched=0 listed=0");
        let first = ListEnd::parse(&bench.list(action, &[many]).ok);
        assert_eq!(first.matched, None, "not all were looked at");
        assert_eq!(bench.walk(action, &[many], |_| ()), (vec![], 40));
    }
    // The same for a change with patterns.
    bench.group.state.config_mut().looked_at_max = 80;
    let mut parts = |settings: &[(&str, &str)]| {
        let command = JobCommand {
            name: Some("docs"),
            ..JobCommand::unnamed(JobAction::Set, settings.to_vec())
        };
        bench.feed(job_input(A.requester(), &command).unwrap().1);
        bench.ok().to_owned()
    };
    assert!(parts(&[("dry", "yes"), ("max-depth", "1")]).contains(" of=40"));
    let ok = parts(&[("dry", "yes"), ("exclude", many.1)]);
    assert!(ok.contains(" of=1 "), "{ok}");
}

/// Selected entries may end while the texts of the others are read. What was only counted is then in
/// the next part.
// PROTOCOL: G11
#[test]
fn entries_that_end_while_texts_are_read_hide_no_others() {
    let mut bench = Bench::new(&[("delay", "0")]);
    bench.group.set_paging(TINY);
    bench.join(A, 1);
    for n in 1..=300 {
        bench.publish(&format!("http://h{n}.org/"));
    }
    let held = bench.task();
    let command = GroupCommand { action: GroupAction::Tasks, ..group_command(&[("limit", "3")]) };
    bench.answers.clear();
    bench.group.handle(group_input(A.requester(), &command).unwrap(), bench.now);
    let mut reads = Vec::new();
    while let Some(output) = bench.group.poll() {
        reads.extend(bench.take(output));
    }
    assert!(bench.answers.is_empty() && !reads.is_empty(), "the list waits for its texts");
    bench.ack(A, &held.id, Outcome::Done, &[]);
    for read in reads {
        let reply = bench.pages.execute(read);
        bench.feed(Input::Texts(reply));
    }
    let is_list = |answer: &AnswerText| answer.ok.contains(" listed=");
    let first = bench.answers.iter().flatten().find(|answer| is_list(answer)).unwrap().clone();
    assert_eq!(first.ok, "crawlers matched=299 listed=3 next=4");
    let mut next = ListEnd::parse(&first.ok).next;
    let mut listed: Vec<_> = first.lines.iter().map(|line| first_word(line)).collect();
    while let Some(after) = next {
        let after = after.to_string();
        let part = bench.list(GroupAction::Tasks, &[("after", &after), ("limit", "100")]);
        listed.extend(part.lines.iter().map(|line| first_word(line)));
        next = ListEnd::parse(&part.ok).next;
    }
    assert_eq!(listed, (2..=300).map(|id: u64| id.to_string()).collect::<Vec<_>>());
}

// PROTOCOL: G11
#[test]
fn the_first_part_of_a_list_counts_all() {
    let mut bench = Bench::new(&[]);
    for n in 1..=9 {
        bench.publish(&format!("http://h{n}.org/"));
    }
    assert_eq!(
        bench.list(GroupAction::Tasks, &[("limit", "4")]).ok,
        "crawlers matched=9 listed=4 next=4"
    );
    assert_eq!(bench.list(GroupAction::Tasks, &[("limit", "9")]).ok, "crawlers matched=9 listed=9");
    let (limit, after) = (("limit", "4"), ("after", "4"));
    assert_eq!(bench.list(GroupAction::Tasks, &[limit, after]).ok, "crawlers listed=4 next=8");
    assert_eq!(bench.list(GroupAction::Tasks, &[limit, ("after", "8")]).ok, "crawlers listed=1");
    assert_eq!(bench.list(GroupAction::Tasks, &[("limit", "0")]).ok, "crawlers matched=9 listed=0");
}

/// Without changes, each walk lists everything once.
// PROTOCOL: G11
#[test]
fn keys_schedules_jobs_and_members_have_walks() {
    let mut bench = Bench::new(&[]);
    let (mut urls, mut keys, mut jobs) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for n in 0..50 {
        let (url, key, job) = (format!("http://h{n}.org/"), format!("h{n}.org"), format!("j{n}"));
        bench.open(&job, &[]);
        bench.publish(&format!("{url} every=1h"));
        urls.insert(url);
        keys.insert(key);
        jobs.insert(job);
    }
    bench.close("j7");
    let limit = [("limit", "7")];
    let mut walk = |action| {
        let (listed, parts) = bench.walk(action, &limit, |_| ());
        assert_eq!((listed.len(), parts), (50, 8));
        listed.into_iter().collect::<BTreeSet<_>>()
    };
    assert_eq!(walk(GroupAction::Schedules), urls);
    assert_eq!(walk(GroupAction::Keys), keys);
    assert_eq!(walk(GroupAction::Ls), jobs);
    let newest = bench.list(GroupAction::Ls, &limit);
    assert_eq!(newest.ok, "crawlers jobs=50 listed=7");
    assert!(newest.lines[0].starts_with("j49 "), "{newest:?}");
    let done = bench.list(GroupAction::Ls, &[("state", "open"), limit[0]]);
    assert_eq!(done.ok, "crawlers jobs=49 listed=7");
    let some = bench.list(GroupAction::Schedules, &[("match", "http://h1")]);
    assert_eq!(some.ok, "crawlers matched=11 listed=11");
    bench.publish("http://h1.org/soon every=1m");
    let of_h1 = [("match", "http://h1.org/"), ("limit", "1")];
    let soonest = bench.list(GroupAction::Schedules, &of_h1);
    assert_eq!(soonest.ok, "crawlers matched=2 listed=1");
    assert!(soonest.lines[0].starts_with("http://h1.org/soon "), "{soonest:?}");
    // Members with the same first digits are in the same part.
    for (conn, digits) in [(1, 1), (2, 2), (3, 2), (4, 2), (5, 3)] {
        let member = MemberId((digits << 96) + u128::from(conn));
        let requester = Requester { conn: ConnId(conn), member, ..B.requester() };
        bench.join_on(requester, 1, None);
    }
    let (members, parts) = bench.walk(GroupAction::Members, &[("limit", "1")], |_| ());
    assert_eq!(members, ["00000001", "00000002", "00000002", "00000002", "00000003"]);
    assert_eq!(parts, 3);
}

/// Finished tasks are walked in the order in which they ended.
// PROTOCOL: G11
#[test]
fn finished_tasks_have_a_walk() {
    let mut bench = Bench::new(&[("delay", "0")]);
    bench.join(A, 1);
    for n in 0..20 {
        bench.publish(&format!("http://h{n}.org/"));
        let task = bench.task();
        let outcome = if n % 4 == 0 { Outcome::Failed } else { Outcome::Done };
        bench.ack(A, &task.id, outcome, &[]);
    }
    let settings = [("state", "completed"), ("limit", "4")];
    let (listed, parts) = bench.walk(GroupAction::Tasks, &settings, |_| ());
    let expected: Vec<_> = (1..=20).filter(|id| id % 4 != 1).map(|id| id.to_string()).collect();
    assert_eq!((listed, parts), (expected, 4));
}
