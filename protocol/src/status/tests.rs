use proptest::prelude::*;
use serde::Serialize;
use serde_json::{Value, json};

use super::*;
use crate::{GroupSettings, Settings};

/// A word that a field of this type reads and writes unchanged. A string may be a duration or a
/// size, so it always is both.
fn word_of(json: JsonType) -> BoxedStrategy<String> {
    match json {
        JsonType::String => "[1-9]m".boxed(),
        JsonType::OneOf(words) => prop::sample::select(words).prop_map(str::to_owned).boxed(),
        JsonType::Integer | JsonType::Signed => {
            (0..1_i16 << 14).prop_map(|number| number.to_string()).boxed()
        }
        JsonType::Number => "(0|[1-9][0-9]{0,9})\\.[0-9]".boxed(),
        JsonType::Boolean => prop_oneof![Just("yes".to_owned()), Just("no".to_owned())].boxed(),
        JsonType::Strings => "[a-z=/.]{1,9}(,[a-z=/.]{1,9}){0,3}".boxed(),
    }
}

/// The words of a status in their order; some of the optional ones are missing.
fn words_of(fields: Vec<Field>) -> impl Strategy<Value = Vec<(Field, String)>> {
    // Settings are read as strictly as in commands.
    let has_settings = fields.iter().any(|field| field.key == "circuit");
    let setting = |field: &Field| GroupSettings::setting(field.key).ok().filter(|_| has_settings);
    let word = |field: Field| {
        let present = if field.required { Just(true).boxed() } else { any::<bool>().boxed() };
        let word = match setting(&field) {
            Some(setting) if setting.kind.repeats() => Just("a=b".to_owned()).boxed(),
            Some(setting) => Just(setting.words(&GroupSettings::default()).join(",")).boxed(),
            None => word_of(field.json),
        };
        let word = word.prop_map(move |word| (field, word));
        (present, word).prop_map(|(present, word)| present.then_some(word))
    };
    let words: Vec<_> = fields.into_iter().map(word).collect();
    words.prop_map(|words| words.into_iter().flatten().collect())
}

/// Checks that the line of an answer is written as it was read, and that the JSON object has the
/// same fields.
fn check<S: Into<Status>>(
    words: &[(Field, String)],
    line: &str,
    parse: impl Fn(&str) -> S,
) -> Result<(), TestCaseError> {
    let status: Status = parse(line).into();
    let word = if let Status::Cursor(_) = status { "cursor " } else { "" };
    prop_assert_eq!(status.to_string(), format!("{word}{line}"));
    let object = json(&status);
    prop_assert_eq!(object.as_object().unwrap().len(), words.len());
    for (field, word) in words {
        let shown = match (field.json, &object[field.key]) {
            (JsonType::String | JsonType::OneOf(_), Value::String(text)) => text.clone(),
            (JsonType::Integer | JsonType::Signed, Value::Number(number)) => number.to_string(),
            (JsonType::Number, Value::Number(number)) => format!("{:.1}", number.as_f64().unwrap()),
            (JsonType::Boolean, Value::Bool(true)) => "yes".to_owned(),
            (JsonType::Boolean, Value::Bool(false)) => "no".to_owned(),
            (JsonType::Strings, Value::Array(items)) => {
                items.iter().map(|item| item.as_str().unwrap()).collect::<Vec<_>>().join(",")
            }
            (_, other) => return Err(TestCaseError::fail(format!("{field:?} is {other}"))),
        };
        prop_assert_eq!(&shown, word);
    }
    Ok(())
}

fn line_of(words: &[(Field, String)]) -> String {
    let (_, head) = &words[0];
    let rest = words[1..].iter().map(|(field, word)| format!(" {}={word}", field.key));
    head.clone() + &rest.collect::<String>()
}

macro_rules! round_trips {
    ($($test:ident: $status:ty,)*) => {
        proptest! {
            $(
                #[test]
                fn $test(words in words_of(<$status>::fields())) {
                    check(&words, &line_of(&words), <$status>::parse)?;
                }
            )*
        }
    };
}

round_trips! {
    a_job_is_written_as_it_was_read: JobStatus,
    the_end_of_a_job_is_written_as_it_was_read: JobEnd,
    a_group_is_written_as_it_was_read: GroupStatus,
    a_damaged_group_is_written_as_it_was_read: DamagedGroupStatus,
    a_key_is_written_as_it_was_read: KeyStatus,
    a_schedule_is_written_as_it_was_read: ScheduleStatus,
    a_topic_is_written_as_it_was_read: TopicStatus,
    a_cursor_is_written_as_it_was_read: CursorStatus,
    a_member_is_written_as_it_was_read: MemberStatus,
    the_end_of_a_list_is_written_as_it_was_read: ListEnd,
    the_end_of_a_job_list_is_written_as_it_was_read: JobListEnd,
    a_dry_run_of_a_change_is_written_as_it_was_read: JobDryRun,
    a_seed_is_written_as_it_was_read: SeedStatus,
    a_number_of_changed_entries_is_written_as_it_was_read: ChangedEntriesStatus,
    a_rule_is_written_as_it_was_read: RuleStatus,
    a_listed_rule_is_written_as_it_was_read: ListedRule,
    an_ack_is_written_as_it_was_read: AckStatus,
    a_touch_is_written_as_it_was_read: TouchStatus,
}

proptest! {
    #[test]
    fn a_task_ends_with_any_text(mut words in words_of(TaskStatus::fields()), url in "[a-z=/. ]{0,30}") {
        // A text that begins like the next field would be one.
        let url = format!("state={url}");
        words.pop();
        let line = format!("{} {url}", line_of(&words));
        words.push((Field { key: "url", json: JsonType::String, required: true, about: "" }, url));
        check(&words, &line, TaskStatus::parse)?;
    }

    #[test]
    fn any_text_is_read(line in "\\PC{0,80}") {
        JobStatus::parse(&line);
        GroupStatus::parse(&line);
        TaskStatus::parse(&line);
    }
}

#[test]
fn an_answer_has_a_status_in_each_line() {
    let cursor = CursorStatus { moved: "never".into(), ..CursorStatus::parse("c next=7 behind=2") };
    let lines = vec![cursor.into(), String::new().into(), "a b".to_owned().into()];
    let answer = Answer { lines, ok: ListEnd::parse("g matched=2 listed=1").into() };
    let (mut out, mut done) = (Vec::new(), Vec::new());
    answer.encode(&mut out);
    let lines = "+ cursor c next=7 behind=2 held=no moved=never\r\n+ \r\n+ a b\r\n";
    let expected = format!("{lines}+OK g matched=2 listed=1\r\n");
    assert_eq!(String::from_utf8(out).unwrap(), expected);
    assert_eq!(json(&answer.lines[2]), "a b");
    Answer::from(String::new()).encode(&mut done);
    assert_eq!(done, b"+OK\r\n");
}

#[test]
fn what_is_unknown_or_missing_is_left_at_its_default() {
    assert_eq!(JobStatus::parse(""), JobStatus::default());
    let job = JobStatus::parse("docs number=3 state=asleep completed=-1 fresh=9 found=10");
    let counts = PassCounts { found: 10, ..PassCounts::default() };
    assert_eq!(job, JobStatus { job: "docs".into(), number: 3, counts, ..JobStatus::default() });
    assert_eq!(job.state, JobState::Unknown);
}

// PROTOCOL: H9
#[test]
fn the_type_of_a_value_depends_on_its_key_alone() {
    let topic = json(&TopicStatus::parse("7 next=1043 rate=0.5 retain-bytes=1g state=ok"));
    assert_eq!((&topic["topic"], &topic["next"]), (&json!("7"), &json!(1043)));
    assert_eq!((&topic["rate"], &topic["retain-bytes"]), (&json!(0.5), &json!("1g")));
    let group = json(&GroupStatus::parse("g paused=yes members=0 topics=a,12 key=attr:a12"));
    assert_eq!((&group["paused"], &group["members"]), (&json!(true), &json!(0)));
    assert_eq!((&group["topics"], &group["key"]), (&json!(["a", "12"]), &json!("attr:a12")));
    let job = json(&JobStatus::parse("docs number=3 pass=1 scope=17 include=/a,/b"));
    assert_eq!((&job["scope"], &job["include"]), (&json!(17), &json!(["/a", "/b"])));
}

#[test]
fn the_url_of_a_task_is_the_rest_after_the_known_keys() {
    let task = json(&TaskStatus::parse("17 state=dead key=a b=c d attempts=1"));
    assert_eq!(task["url"], "b=c d attempts=1");
    let line = "17 state=pending key=a.example job=9 pass=1 depth=0 prio=-1 attempts=0 losses=0 due-ms=5 \
                http://a.example/?x=1";
    let expected = json!({
        "entry": 17, "state": "pending", "key": "a.example", "job": "9", "pass": 1, "depth": 0,
        "prio": -1, "attempts": 0, "losses": 0, "due-ms": 5, "url": "http://a.example/?x=1"
    });
    assert_eq!(json(&TaskStatus::parse(line)), expected);
    let repeated = "17 state=dead key=none attempts=0 losses=0 last=x state=dead";
    assert_eq!(TaskStatus::parse(repeated).url, "state=dead");
}

fn json(status: &impl Serialize) -> Value {
    serde_json::to_value(status).unwrap()
}
