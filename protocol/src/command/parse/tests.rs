use proptest::prelude::*;

use super::*;
use crate::{
    GroupAction, GroupCommand, JobAction, JobCommand, MemberId, PageChange, Prio, Seq, StartAt,
    TaskId, TopicAction, TopicCommand,
};

#[track_caller]
fn both_ways(line: &str, command: &Command<'_>) {
    assert_eq!(Command::parse(line).as_ref(), Ok(command));
    let mut out = Vec::new();
    command.encode(&mut out);
    assert_eq!(String::from_utf8(out).unwrap(), format!("{line}\n"));
}

#[track_caller]
fn refused(line: &str, code: Code, text: &str) {
    let error = Command::parse(line).unwrap_err();
    assert_eq!(error.code, code, "{error}");
    assert!(error.text.contains(text), "{error}");
}

fn task() -> TaskId {
    "crawlers:7.42.1".parse().unwrap()
}

// PROTOCOL: P1
#[test]
fn publishing() {
    let payload = "http://example.org/ job=docs";
    let command = Command::Pub { topic: "new-url", payload };
    both_ways("PUB new-url http://example.org/ job=docs", &command);
    both_ways("PUB t  a ", &Command::Pub { topic: "t", payload: " a " });
    for line in ["PUB", "PUB ", "PUB t", "PUB t "] {
        refused(line, Code::BadArgument, "PUB <topic> <payload>");
    }
    refused("PUB a/b x", Code::BadName, "name of a topic");
}

// PROTOCOL: P1
#[test]
fn the_longest_payload_and_one_more() {
    let longest = format!("PUB t {}", "x".repeat(PAYLOAD_BYTES_MAX));
    assert!(Command::parse(&longest).is_ok());
    refused(&format!("{longest}x"), Code::TooLong, "61441 bytes is over the limit of 61440");
}

// PROTOCOL: C2, C3
#[test]
fn hello() {
    both_ways("HELLO", &Command::Hello(Hello::default()));
    let hello = Hello {
        name: Some("me".into()),
        token: Some(Token::new("s3cret").unwrap()),
        echo: Some("x1".into()),
        resume: Some(MemberId(7)),
        via: Some("zmq".into()),
    };
    assert!(!format!("{hello:?}").contains("s3cret"));
    let line = "HELLO name=me token=s3cret echo=x1 resume=00000000000000000000000000000007 \
                via=zmq";
    both_ways(line, &Command::Hello(hello));
    refused("HELLO resume=7", Code::BadArgument, "32 hex digits");
    refused("HELLO name=", Code::BadArgument, "\"name=\" needs a value");
    refused("HELLO me", Code::BadArgument, "should be an option like key=value");
    refused("HELLO nam=x", Code::BadArgument, "takes name=, token=, echo=, resume=, via=");
    refused("HELLO name=a name=b", Code::BadArgument, "given twice");
    refused(&format!("HELLO name={}", "x".repeat(65)), Code::BadArgument, "64 bytes");
}

// PROTOCOL: C1, C3
#[test]
fn subscribing() {
    let sub = |from, cursor: Option<&str>, takeover| Command::Sub {
        topic: "t".parse().unwrap(),
        from,
        cursor: cursor.map(|name| name.parse().unwrap()),
        takeover,
        filter: AttributeFilter::default(),
    };
    both_ways("SUB t", &sub(None, None, false));
    both_ways("SUB t from=first", &sub(Some(StartAt::First), None, false));
    both_ways("SUB t from=last", &sub(Some(StartAt::Last), None, false));
    both_ways("SUB t from=42", &sub(Some(StartAt::Seq(Seq(42))), None, false));
    both_ways("SUB t from=-10", &sub(Some(StartAt::Newest(10)), None, false));
    let time = Some(StartAt::Time(1_769_860_800_000));
    both_ways("SUB t from=2026-01-31T12:00:00Z", &sub(time, None, false));
    both_ways("SUB t as=me takeover=yes", &sub(None, Some("me"), true));
    let line = "SUB t where=outcome=failed where=status!=404 where=empty=";
    let filter = AttributeFilter::parse(["outcome=failed", "status!=404", "empty="]).unwrap();
    let (from, cursor, takeover) = (None, None, false);
    let topic = "t".parse().unwrap();
    both_ways(line, &Command::Sub { topic, from, cursor, takeover, filter });
    refused("SUB t where=x", Code::BadArgument, "should be <key>=<value>");
    refused("SUB t where==x", Code::BadArgument, "should be <key>=<value>");
    refused(&format!("SUB t{}", " where=a=b".repeat(9)), Code::BadArgument, "at most 8 times");
    for spelling in ["13:00:00+01:00", "12:00:00.000Z", "12:00:00.000900900z", "07:30:00-04:30"] {
        let line = format!("SUB t takeover=no from=2026-01-31T{spelling}");
        assert_eq!(Command::parse(&line), Ok(sub(time, None, false)), "{line}");
    }
    let wrong = [
        "0",
        "-0",
        "--1",
        "+1",
        "x",
        "18446744073709551616",
        "1969-12-31T00:00:00Z",
        "20260131T120000Z",
        "2026-01-31",
        "2026-01-31T12:00Z",
        "2026-01-31T12:00:00",
        "2026-01-31T12:00:00.Z",
        "2026-01-31T12:00:00+01",
        "2026-01-31T13:00:00+01:00[Europe/Paris]",
        "2026-02-30T12:00:00Z",
    ];
    for from in wrong {
        refused(&format!("SUB t from={from}"), Code::BadArgument, "should be first, last");
    }
    refused("SUB", Code::BadArgument, "SUB <topic>");
    refused("SUB a=b", Code::BadName, "topic");
    refused("SUB t as=a/b", Code::BadName, "cursor");
    refused("SUB t takeover=maybe", Code::BadArgument, "yes or no");
}

#[test]
fn the_other_subscription_commands() {
    let topic = || "t".parse().unwrap();
    both_ways("SEEN t 5", &Command::Seen { topic: topic(), seq: Seq(5) });
    both_ways("UNSUB t", &Command::Unsub { topic: topic() });
    refused("SEEN t", Code::BadArgument, "SEEN <topic> <seq>");
    refused("SEEN t 0", Code::BadArgument, "from 1");
    refused("SEEN t 5 6", Code::BadArgument, "SEEN <topic> <seq>");
    refused("UNSUB t x", Code::BadArgument, "UNSUB <topic>");
}

#[test]
fn joining() {
    let group = || "g".parse().unwrap();
    let join = |credit, render| {
        let browsers = BrowserFields::default();
        Command::Join { group: group(), credit, render, browsers }
    };
    both_ways("JOIN g", &join(None, None));
    both_ways("JOIN g credit=0", &join(Some(0), None));
    both_ways("JOIN g credit=4294967295", &join(Some(u32::MAX), None));
    both_ways("JOIN g credit=9 can=render render=0", &join(Some(9), Some(0)));
    let browsers =
        BrowserFields { browsers: Some(2), bytes: Some(1 << 40), ..BrowserFields::default() };
    let reporting = Command::Join { group: group(), credit: None, render: Some(6), browsers };
    both_ways("JOIN g can=render render=6 browsers=2 browser-bytes=1099511627776", &reporting);
    refused("JOIN g can=render browser-pages=some", Code::BadArgument, "from 0");
    refused("JOIN g browsers=2", Code::BadArgument, "needs can=render");
    let parsed = |line| Command::parse(line).unwrap();
    assert_eq!(parsed("JOIN g can=render credit=9"), join(Some(9), Some(9)));
    assert_eq!(parsed("JOIN g can=render,render"), join(None, Some(1)));
    for count in ["-1", "+1", "4294967296", "many"] {
        refused(&format!("JOIN g credit={count}"), Code::BadArgument, "from 0");
        refused(&format!("JOIN g can=render render={count}"), Code::BadArgument, "from 0");
    }
    refused("JOIN g render=1", Code::BadArgument, "needs can=render");
    refused("JOIN g can=render,fly", Code::BadArgument, "\"fly\" is unknown");
    refused("JOIN g can=render can=render", Code::BadArgument, "twice");
}

#[test]
fn links() {
    let child =
        |redirect, prio| Command::Link { task: task(), url: "http://a/?b=c", redirect, prio };
    both_ways("LINK crawlers:7.42.1 http://a/?b=c", &child(false, None));
    let line = "LINK crawlers:7.42.1 http://a/?b=c kind=redirect prio=-5";
    both_ways(line, &child(true, Prio::new(-5)));
    refused("LINK crawlers:7.42.1", Code::BadArgument, "LINK <id> <url>");
    refused("LINK crawlers http://a/", Code::BadArgument, "id of a task");
    refused("LINK crawlers:7.42.1 http://a/ kind=x", Code::BadArgument, "redirect");
    for prio in ["1001", "-1001", "--1", "+1", "1.5", "99999999"] {
        let line = format!("LINK crawlers:7.42.1 http://a/ prio={prio}");
        refused(&line, Code::BadArgument, "-1000 to 1000");
    }
}

#[test]
fn acks() {
    let hold = KeyRest { not_before_ms: Some(30_000), pace_ms: Some(250) };
    let ack = |outcome, rest| {
        let action = TaskAction::Ack(outcome);
        Command::Reply(TaskReply { task: task(), action, rest, report: None })
    };
    both_ways("ACK crawlers:7.42.1", &ack(Outcome::Done, KeyRest::default()));
    let line = "ACK crawlers:7.42.1 outcome=failed not-before=30s pace=250ms";
    both_ways(line, &ack(Outcome::Failed, hold));
    for outcome in Outcome::ALL {
        let line = format!("ACK crawlers:7.42.1 outcome={outcome}");
        assert_eq!(Command::parse(&line), Ok(ack(outcome, KeyRest::default())));
    }
    let report = TaskReport {
        reason: Some("status".into()),
        error: Some("HTTP_status_404".into()),
        status: Some(404),
        ms: Some(57),
        bytes: Some(0),
        changed: Some(PageChange::New),
        content_type: Some("text/html".into()),
        hash: Some("5f1e".into()),
    };
    let (action, rest) = (TaskAction::Ack(Outcome::Failed), KeyRest::default());
    let reply = TaskReply { task: task(), action, rest, report: Some(report.into()) };
    let line = "ACK crawlers:7.42.1 outcome=failed reason=status error=HTTP_status_404 status=404 \
                ms=57 bytes=0 changed=new type=text/html hash=5f1e";
    both_ways(line, &Command::Reply(reply));
    for (option, says) in [
        ("status=1000", "0 to 999"),
        ("status=-1", "0 to 999"),
        ("ms=1.5", "whole number"),
        ("bytes=+3", "whole number"),
        ("changed=maybe", "new, yes or no"),
        ("hash=", "needs a value"),
        ("ms=1 ms=2", "twice"),
        ("colour=red", "outcome=, not-before=, pace=, reason=, error="),
    ] {
        refused(&format!("ACK crawlers:7.42.1 {option}"), Code::BadArgument, says);
    }
    refused(
        "TOUCH crawlers:7.42.1 status=200",
        Code::BadArgument,
        "over=, part=, not-before=, pace=",
    );
    refused("ACK", Code::BadArgument, "ACK <id>");
    refused("ACK crawlers:7.42.1 outcome=Done", Code::BadArgument, "done, redirect, failed");
    refused("ACK crawlers:7.42.1 pace=5", Code::BadArgument, "250ms");
    refused("ACK crawlers:7.42.1 pace=-5s", Code::BadArgument, "250ms");
}

// PROTOCOL: C4
#[test]
fn nacks() {
    let nack = |retry, reason: Option<&str>| {
        let (action, rest) = (TaskAction::Nack(retry), KeyRest::default());
        let report = TaskReport::of_reason(reason.map(str::to_owned));
        Command::Reply(TaskReply { task: task(), action, rest, report })
    };
    let id = "crawlers:7.42.1";
    both_ways(&format!("NACK {id}"), &nack(RetryMode::Counted { after_ms: None }, None));
    let back = RetryMode::Counted { after_ms: Some(60_000) };
    both_ways(&format!("NACK {id} after=1m reason=timed_out"), &nack(back, Some("timed_out")));
    let back = RetryMode::Uncounted { after_ms: Some(0) };
    both_ways(&format!("NACK {id} after=0 count=no"), &nack(back, None));
    let back = RetryMode::OtherUrl { url: "http://a/?b=c".into() };
    both_ways(&format!("NACK {id} again=http://a/?b=c"), &nack(back, None));
    both_ways(&format!("NACK {id} need=render"), &nack(RetryMode::NeedsRender, None));
    both_ways(&format!("NACK {id} retry=no reason=gone"), &nack(RetryMode::Never, Some("gone")));
    for wrong in ["retry=yes", "retry=no after=1s", "retry=no count=yes", "retry=no need=render"] {
        refused(&format!("NACK {id} {wrong}"), Code::BadArgument, "retry= must be no");
    }
    refused(&format!("NACK {id} need=sleep"), Code::BadArgument, "should be render");
    for with in ["after=1s", "count=no", "count=yes"] {
        for what in ["again=http://a/", "need=render"] {
            refused(&format!("NACK {id} {what} {with}"), Code::BadArgument, "combined");
        }
    }
    refused(&format!("NACK {id} again=http://a/ need=render"), Code::BadArgument, "combined");
    let mut out = Vec::new();
    nack(RetryMode::Counted { after_ms: None }, Some("it\r\nfailed, 2 times")).encode(&mut out);
    assert_eq!(out, b"NACK crawlers:7.42.1 reason=it__failed,_2_times\n");
    out.clear();
    nack(RetryMode::Counted { after_ms: None }, Some(&"ä".repeat(300))).encode(&mut out);
    assert!(Command::parse(std::str::from_utf8(&out).unwrap().trim_end()).is_ok());
}

#[test]
fn touches() {
    let hold = KeyRest { not_before_ms: None, pace_ms: Some(2000) };
    let touch = |request_ended, rest| {
        let action = TaskAction::Touch { request_ended };
        Command::Reply(TaskReply { task: task(), action, rest, report: None })
    };
    both_ways("TOUCH crawlers:7.42.1", &touch(false, KeyRest::default()));
    both_ways("TOUCH crawlers:7.42.1 over=yes pace=2s", &touch(true, hold));
    let action = TaskAction::Part { url: "http://a.org/x.js".into() };
    let part = TaskReply { task: task(), action, rest: KeyRest::default(), report: None };
    both_ways("TOUCH crawlers:7.42.1 part=http://a.org/x.js", &Command::Reply(part));
    refused("TOUCH crawlers:7.42.1 over", Code::BadArgument, "key=value");
    refused("TOUCH crawlers:7.42.1 over=no part=http://a/", Code::BadArgument, "combined");
}

#[test]
fn manage_commands() {
    let settings = || vec![("scope", "host"), ("max-pages", "5")];
    let manage = JobCommand::new(JobAction::Open, "docs", settings());
    both_ways("JOB open docs scope=host max-pages=5", &Command::Job(manage.clone()));
    let unknown = GroupCommand::new(GroupAction::Unknown("open"), "docs", settings());
    both_ways("GROUP open docs scope=host max-pages=5", &Command::Group(unknown));
    assert_eq!(manage.setting("scope"), Some("host"));
    assert_eq!(manage.setting("depth"), None);
    assert!(manage.allow_only(&["scope", "max-pages"]).is_ok());
    assert_eq!(manage.allow_only(&["scope"]).unwrap_err().code, Code::BadArgument);
    let ls = TopicCommand::unnamed(TopicAction::Ls, vec![]);
    assert_eq!(ls.required_name().unwrap_err().code, Code::BadArgument);
    both_ways("TOPIC ls", &Command::Topic(ls));
    let ls = TopicCommand::unnamed(TopicAction::Ls, vec![("a", "b")]);
    both_ways("TOPIC ls a=b", &Command::Topic(ls));
    refused("JOB", Code::BadArgument, "action");
    refused("JOB Open x", Code::BadArgument, "action");
    refused("JOB open a/b", Code::BadName, "name of a job");
    refused("JOB open docs x", Code::BadArgument, "key=value");
    refused("JOB open docs a=1 a=2", Code::BadArgument, "twice");
    refused("JOB open docs a=", Code::BadArgument, "needs a value");
}

#[test]
fn commands_without_arguments() {
    both_ways("PING", &Command::Ping);
    both_ways("STATS", &Command::Stats);
    both_ways("HELP", &Command::Help);
    both_ways("QUIT", &Command::Quit);
    assert_eq!(Command::parse("PING "), Ok(Command::Ping));
    refused("PING x", Code::BadArgument, "no arguments");
    both_ways("EXPLAIN example.org", &Command::Explain { what: "example.org", group: None });
    let group = Some("team".parse().unwrap());
    both_ways("EXPLAIN a=b group=team", &Command::Explain { what: "a=b", group });
    refused("EXPLAIN", Code::BadArgument, "<url|key>");
    refused("EXPLAIN a b", Code::BadArgument, "key=value");
    refused("EXPLAIN a groop=b", Code::BadArgument, "group=");
}

#[test]
fn an_unknown_command_gets_a_hint() {
    refused("ping", Code::UnknownCommand, "upper case at the beginning of the line: PING");
    refused("SUB\tt", Code::UnknownCommand, "a space, and no TAB, follows SUB");
    refused(" PING", Code::UnknownCommand, "beginning of the line: PING");
    refused("hello there", Code::UnknownCommand, "HELLO");
    refused("GET / HTTP/1.0", Code::UnknownCommand, "HELP lists");
    refused("", Code::UnknownCommand, "HELP lists");
}

fn word() -> impl Strategy<Value = String> {
    "[!-~äß]{1,20}"
}

fn name() -> impl Strategy<Value = String> {
    "[A-Za-z0-9][A-Za-z0-9._-]{0,20}"
}

fn hold() -> impl Strategy<Value = KeyRest> {
    let duration = || proptest::option::of(0..=crate::DURATION_MS_MAX);
    (duration(), duration()).prop_map(|(not_before_ms, pace_ms)| KeyRest { not_before_ms, pace_ms })
}

fn task_id() -> impl Strategy<Value = TaskId> {
    (name(), any::<(u64, u64, u32)>()).prop_map(|(group, (run, entry, attempt))| TaskId {
        group: group.parse().unwrap(),
        run,
        entry,
        attempt,
    })
}

fn start() -> impl Strategy<Value = Option<StartAt>> {
    proptest::option::of(prop_oneof![
        Just(StartAt::First),
        Just(StartAt::Last),
        (1..=u64::MAX).prop_map(|seq| StartAt::Seq(Seq(seq))),
        (1..=u64::MAX).prop_map(StartAt::Newest),
        (0..=253_402_000_000_000_i64).prop_map(StartAt::Time),
    ])
}

/// The parts of any command; `kind` decides which of them are used.
#[derive(Debug)]
struct Parts {
    kind: u8,
    names: (String, String),
    words: (Option<String>, String),
    task: TaskId,
    hold: KeyRest,
    from: Option<StartAt>,
    numbers: (u64, Option<u32>, i16),
    flag: bool,
    settings: Vec<(String, String)>,
}

fn parts() -> impl Strategy<Value = Parts> {
    let settings = proptest::collection::btree_map("[a-z]{1,8}", word(), 0..5);
    (
        (0_u8..15, any::<bool>(), start(), hold(), task_id()),
        (name(), name()),
        (proptest::option::of(word()), word()),
        (1..=u64::MAX, any::<Option<u32>>(), -1000_i16..=1000),
        settings,
    )
        .prop_map(|((kind, flag, from, hold, task), names, words, numbers, settings)| Parts {
            kind,
            names,
            words,
            task,
            hold,
            from,
            numbers,
            flag,
            settings: settings.into_iter().collect(),
        })
}

fn report_of(
    (text, word): &(Option<String>, String),
    (bytes, ms, prio): (u64, Option<u32>, i16),
    flag: bool,
) -> Option<Box<TaskReport>> {
    let word = flag.then(|| word.clone());
    let report = TaskReport {
        reason: text.clone(),
        error: word.clone(),
        status: u16::try_from(prio).ok().filter(|status| *status <= 999),
        ms: ms.map(u64::from),
        bytes: flag.then_some(bytes),
        changed: flag.then_some(PageChange::ALL[ms.unwrap_or(0) as usize % 3]),
        content_type: text.clone(),
        hash: word,
    };
    (report != TaskReport::default()).then(|| report.into())
}

fn command_of(parts: &Parts) -> Command<'_> {
    let Parts { kind, names: (a, b), words, task, hold, from, numbers, flag, settings } = parts;
    let (hold, from, flag, task) = (*hold, *from, *flag, task.clone());
    let topic = a.parse().unwrap();
    let name = flag.then_some(b.as_str());
    let settings: Vec<_> = settings.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    let after_ms = hold.not_before_ms;
    let reply = |action| {
        let report = match action {
            TaskAction::Touch { .. } | TaskAction::Part { .. } => None,
            TaskAction::Ack(_) | TaskAction::Nack(_) => report_of(words, *numbers, flag),
        };
        Command::Reply(TaskReply { task: task.clone(), action, rest: hold, report })
    };
    let nack = |retry| reply(TaskAction::Nack(retry));
    match kind {
        0 => Command::Hello(Hello {
            name: words.0.clone(),
            token: flag.then(|| Token::new(&words.1).unwrap()),
            echo: words.0.clone(),
            resume: flag.then_some(MemberId(u128::from(numbers.0) << 40)),
            via: words.0.clone(),
        }),
        1 => Command::Pub { topic: a, payload: &words.1 },
        2 => {
            let cursor = flag.then(|| b.parse().unwrap());
            let values: Vec<_> = settings.iter().map(|(k, v)| format!("{k}!={v}")).collect();
            let filter = AttributeFilter::parse(values.iter().map(String::as_str)).unwrap();
            Command::Sub { topic, from, cursor, takeover: flag, filter }
        }
        3 => Command::Seen { topic, seq: Seq(numbers.0) },
        4 => Command::Unsub { topic },
        5 => {
            let (credit, render) = (numbers.1, numbers.1.filter(|_| flag));
            let pages = render.map(u64::from);
            let browsers = BrowserFields { pages, ..BrowserFields::default() };
            Command::Join { group: a.parse().unwrap(), credit, render, browsers }
        }
        6 => {
            let prio = numbers.1.and(Prio::new(numbers.2));
            Command::Link { task, url: &words.1, redirect: flag, prio }
        }
        7 => {
            let outcome = Outcome::ALL[usize::from(numbers.2.unsigned_abs()) % 6];
            reply(TaskAction::Ack(outcome))
        }
        8 if flag => nack(RetryMode::Never),
        8 => nack(RetryMode::Counted { after_ms }),
        9 => nack(RetryMode::Uncounted { after_ms }),
        10 if flag => nack(RetryMode::NeedsRender),
        10 => nack(RetryMode::OtherUrl { url: words.1.clone() }),
        11 if numbers.1.is_some() => reply(TaskAction::Part { url: words.1.clone() }),
        11 => reply(TaskAction::Touch { request_ended: flag }),
        12 => {
            let action = if flag { GroupAction::Set } else { GroupAction::Unknown("do-it") };
            Command::Group(ManageCommand { action, name, settings })
        }
        13 => Command::Job(ManageCommand { action: JobAction::Open, name, settings }),
        _ => Command::Explain { what: &words.1, group: flag.then(|| a.parse().unwrap()) },
    }
}

proptest! {
    #[test]
    fn encoded_lines_parse_to_the_same(parts in parts()) {
        let command = command_of(&parts);
        let mut out = Vec::new();
        command.encode(&mut out);
        let line = std::str::from_utf8(&out).unwrap().strip_suffix('\n').unwrap();
        prop_assert_eq!(Command::parse(line), Ok(command));
    }

    #[test]
    fn parsed_lines_encode_to_the_same(
        verb in proptest::sample::select(&Verb::ALL[..]),
        rest in "( ([a-z]{1,6}=)?[ -~]{0,12}){0,4}",
    ) {
        let line = format!("{}{rest}", verb.as_str());
        if let Ok(command) = Command::parse(&line) {
            let mut out = Vec::new();
            command.encode(&mut out);
            let again = std::str::from_utf8(&out).unwrap().strip_suffix('\n').unwrap();
            prop_assert_eq!(Command::parse(again), Ok(command));
        }
    }
}
