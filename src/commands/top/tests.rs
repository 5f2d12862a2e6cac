use std::env;
use std::process::Command;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::KeyCode;
use tidings_protocol::status::{GroupStatus, JobStatus, KeyStatus, ListedMember, TopicStatus};
use tidings_protocol::text::is_invisible;
use tidings_protocol::{Seq, TopicName};

use super::draw::draw;
use super::model::{Action, Model, Page};
use super::screen::Screen;
use super::snapshot::Snapshot;
use crate::client::overview::{GroupOverview, Overview};

/// Names that act on a terminal, are wide, or are long.
fn hostile_names() -> Vec<String> {
    let names =
        ["\u{1b}[2J\u{7}bell", "\u{202e}right-to-left", "寿司寿司寿司", "e\u{301}", "<b>&amp;</b>"];
    let long = "x".repeat(5_000);
    names.into_iter().map(str::to_owned).chain([long]).collect()
}

fn snapshot(names: &[String]) -> Snapshot {
    let mut snapshot = Snapshot::default();
    let Overview { topics, groups, connections, problems, .. } = &mut snapshot.overview;
    (*connections, *problems) = (2, Vec::new());
    for (number, name) in (1..).zip(names) {
        let topic = TopicStatus { topic: name.clone(), ..TopicStatus::parse("t kept=12 state=ok") };
        topics.push(topic);
        let group = GroupStatus::parse("g members=1 key=host topics=new-url delay=10m");
        let group = GroupStatus { group: name.clone(), waiting: number * 1000, ..group };
        groups.push(GroupOverview::Sound(Box::new(group)));
        let job =
            JobStatus { job: name.clone(), ..JobStatus::parse("j pass=1 state=open found=3") };
        snapshot.jobs.push((name.clone(), job));
        let key = "k waiting=1499 left-ms=896400000 because=delay free-in=599185";
        let key = KeyStatus { key: name.clone(), ..KeyStatus::parse(key) };
        snapshot.hosts.push(key);
        let mut member = ListedMember::parse("5b0c6f1e state=active held=3");
        member.fields.name = Some(name.clone());
        snapshot.members.push(member);
    }
    snapshot
}

fn model(names: &[&str]) -> Model {
    let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
    Model::new("127.0.0.1:12345", snapshot(&names))
}

/// The screen of this size as lines.
fn screen(model: &Model, (width, height): (u16, u16)) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, model)).unwrap();
    let buffer = terminal.backend().buffer();
    let row = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    (0..height).map(row).map(|line| line.trim_end().to_owned()).collect()
}

/// The first cells of all rows.
fn names(model: &Model) -> Vec<String> {
    let lines = model.lines(usize::MAX).into_iter().filter(|(row, _)| row.is_some());
    lines.map(|(_, line)| line.split(' ').next().unwrap().to_owned()).collect()
}

fn press(model: &mut Model, keys: &str) -> Vec<Action> {
    keys.chars().filter_map(|key| model.key(KeyCode::Char(key))).collect()
}

#[test]
fn each_page_fits_on_each_screen_with_any_names() {
    let mut model = model(&["crawlers"]);
    model.update(snapshot(&hostile_names()));
    let topic: TopicName = "new-url".parse().unwrap();
    let pages = [Page::Overview, Page::Groups, Page::Jobs, Page::Topics].into_iter();
    for page in pages.chain([Page::Group("g".parse().unwrap()), Page::Topic(topic.clone())]) {
        model.page = page;
        for (seq, payload) in (1..).zip(hostile_names()) {
            model.event(topic.clone(), Seq(seq), payload);
        }
        for size in [(80, 24), (40, 10), (200, 60), (20, 6), (10, 3), (1, 1)] {
            let lines = screen(&model, size);
            assert!(!lines.concat().contains(is_invisible), "{lines:#?}");
        }
        let lines = screen(&model, (80, 24));
        assert_eq!(lines[0], "All is well.");
        assert!(lines[1].starts_with("broker 127.0.0.1:12345"), "{lines:#?}");
        assert!(lines[23].starts_with("? help"), "{lines:#?}");
    }
    model.page = Page::Groups;
    let lines = screen(&model, (80, 24));
    assert_eq!(lines[3], " overview  [groups]  jobs   topics");
    assert!(lines.iter().any(|line| line.contains("\\u{1b}[2J\\u{7}bell")), "{lines:#?}");
    assert_eq!(screen(&model, (10, 3))[0], "too small");
}

#[test]
fn the_selected_row_is_always_visible() {
    let names: Vec<_> = (0..100).map(|number| format!("group-{number:03}")).collect();
    let mut model = Model::new("a:1", snapshot(&names));
    model.key(KeyCode::Right);
    let shows = |model: &Model, name| screen(model, (80, 24)).iter().any(|l| l.starts_with(name));
    model.key(KeyCode::End);
    assert!(shows(&model, "group-099") && !shows(&model, "group-000"));
    model.key(KeyCode::Down);
    assert_eq!(model.selected, 99);
    model.key(KeyCode::Home);
    assert!(shows(&model, "group-000") && !shows(&model, "group-099"));
    // Fewer rows arrive.
    model.key(KeyCode::End);
    model.update(snapshot(&names[..3]));
    assert_eq!(model.selected, 2);
}

#[test]
fn rows_are_filtered_and_sorted() {
    let mut model = model(&["news", "crawlers", "thumbs"]);
    model.key(KeyCode::Right);
    press(&mut model, "/crawx");
    model.key(KeyCode::Backspace);
    assert_eq!(
        (names(&model), model.foot().starts_with("/craw_")),
        (vec!["crawlers".into()], true)
    );
    model.key(KeyCode::Enter);
    assert!(model.foot().starts_with("filter: craw "), "{}", model.foot());
    model.key(KeyCode::Esc);
    assert_eq!(names(&model), ["news", "crawlers", "thumbs"]);
    press(&mut model, "s");
    assert_eq!(names(&model), ["crawlers", "news", "thumbs"]);
    press(&mut model, "ss");
    assert_eq!(names(&model), ["thumbs", "crawlers", "news"], "3,000 waiting come first");
    press(&mut model, "sssssssss");
    assert_eq!(names(&model), ["news", "crawlers", "thumbs"], "behind the last column");
}

#[test]
fn sizes_and_durations_are_sorted_by_their_amount() {
    let mut model = model(&["a", "b", "c", "d"]);
    model.page = Page::Group("g".parse().unwrap());
    let mut changed = snapshot(&["1", "2", "3", "4"].map(str::to_owned));
    for (host, ms) in changed.hosts.iter_mut().zip([9_900, 90_000_000, 80_000, 400]) {
        host.left_ms = Some(ms);
    }
    changed.members.clear();
    model.update(changed);
    press(&mut model, "ssss");
    assert_eq!(names(&model), ["2", "3", "1", "4"]);

    model.page = Page::Topics;
    let mut changed = snapshot(&["1", "2", "3", "4"].map(str::to_owned));
    for (topic, bytes) in changed.overview.topics.iter_mut().zip([900, 0, 12_000, 3_400_000]) {
        topic.log_bytes = bytes;
    }
    model.update(changed);
    press(&mut model, "sss");
    assert_eq!(names(&model), ["4", "3", "1", "2"]);
}

#[test]
fn a_group_is_opened_and_shows_why_hosts_wait() {
    let mut model = model(&["crawlers", "thumbs"]);
    model.key(KeyCode::Right);
    model.key(KeyCode::Down);
    model.key(KeyCode::Enter);
    assert_eq!(model.page, Page::Group("thumbs".parse().unwrap()));
    assert_eq!(names(&model), ["thumbs"], "its hosts have not arrived");
    model.update(snapshot(&["crawlers".into(), "thumbs".into()]));
    assert_eq!(names(&model)[1..3], ["crawlers", "thumbs"]);
    model.key(KeyCode::Down);
    let lines = screen(&model, (80, 24));
    let sentence = "crawlers rests for 9m 59s more: delay=10m of group thumbs. 1,499 URLs wait";
    assert!(lines[21].starts_with(sentence), "{lines:#?}");
    model.key(KeyCode::Esc);
    assert_eq!(model.page, Page::Groups);
}

#[test]
fn groups_and_jobs_are_paused_only_after_yes() {
    let mut model = model(&["crawlers", "thumbs"]);
    assert_eq!(press(&mut model, "pn"), []);
    let (group, job) = ("crawlers".parse().unwrap(), Some("crawlers".parse().unwrap()));
    let pause = Action::Pause { group, job: None, pause: true };
    assert_eq!(press(&mut model, "py"), [pause]);
    (0..2).for_each(|_| drop(model.key(KeyCode::Down)));
    press(&mut model, "p");
    assert_eq!(model.foot(), "pause job crawlers of group crawlers? [y/N]");
    let group = "crawlers".parse().unwrap();
    assert_eq!(press(&mut model, "y"), [Action::Pause { group, job, pause: true }]);
    assert_eq!(press(&mut model, "?qq"), [Action::Quit], "the first q leaves the help");
}

#[test]
fn a_refusal_stays_until_the_next_key() {
    let mut model = model(&["crawlers"]);
    model.update(Snapshot { refusal: Some("no".to_owned()), ..Snapshot::default() });
    model.update(Snapshot::default());
    assert_eq!(model.foot(), "no");
    model.key(KeyCode::Down);
    assert!(model.foot().starts_with("? help"));
}

#[test]
fn the_newest_events_of_a_topic_come_first() {
    let mut model = model(&["new-url"]);
    let (open, other): (TopicName, TopicName) =
        ("new-url".parse().unwrap(), "log".parse().unwrap());
    model.page = Page::Topic(open.clone());
    for seq in 1..=60 {
        model.event(open.clone(), Seq(seq), format!("http://a.example/{seq}"));
        model.event(other.clone(), Seq(seq), "other".to_owned());
    }
    let rows = model.lines(usize::MAX);
    assert!(rows[4].1.ends_with("60  http://a.example/60"), "{rows:#?}");
    assert_eq!(names(&model).len(), 51, "the topic and its newest events");
    model.key(KeyCode::Down);
    assert_eq!(model.detail(), "http://a.example/60");
}

/// Set for the process that panics.
const PANICS: &str = "TIDINGS_TEST_PANICS";

/// The test starts itself on a terminal of `script`, between two commands that print its settings.
#[test]
#[ignore = "needs foreign programs"]
fn a_panic_restores_the_terminal() {
    if env::var_os(PANICS).is_some() {
        let _screen = Screen::open().unwrap();
        panic!("as intended");
    }
    let program = env::current_exe().unwrap();
    let name = "commands::top::tests::a_panic_restores_the_terminal";
    let test = format!("{} --ignored --exact {name} --nocapture", program.display());
    let line = format!("stty -a; {test}; stty -a");
    let mut script = Command::new("script");
    script.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
    script.env(PANICS, "yes").env("SHELL", "/bin/sh").env("TERM", "xterm");
    let shown = String::from_utf8(script.output().unwrap().stdout).unwrap();
    let (settings, rest) = shown.split_once("\r\n\r\n").unwrap();
    assert!(rest.contains("as intended") && rest.contains("\u{1b}[?1049l"), "{shown:?}");
    assert!(settings.contains(" icanon") && rest.trim_end().ends_with(settings), "{shown:?}");
}

#[test]
fn a_narrow_screen_keeps_states_and_failures() {
    let mut model = model(&["crawlers", "crawl-of-a-site-with-a-rather-long-name"]);
    for (page, last) in [(Page::Groups, "STATE"), (Page::Jobs, "FAILED")] {
        model.page = page;
        let lines = screen(&model, (80, 24));
        assert!(lines[4].ends_with(last), "{lines:#?}");
        assert!(lines[6].contains('…'), "{lines:#?}");
    }
    model.page = Page::Group("g".parse().unwrap());
    let lines = screen(&model, (80, 24));
    let members = lines.iter().find(|line| line.starts_with("MEMBER")).unwrap();
    assert!(members.contains(" RATE  HEARD  NAME"), "{lines:#?}");
    let is_short = |line: &String| line.starts_with("5b0c6f1e") && line.ends_with("long-name");
    assert!(lines.iter().any(|line| is_short(line) && line.contains('…')), "{lines:#?}");
}
