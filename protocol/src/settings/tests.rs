use proptest::prelude::*;

use super::*;
use crate::status::GroupStatus;
use crate::{DURATION_MS_MAX, SPECIFICATION};

/// The cells of the row of a setting in the table below a heading.
fn row(heading: &str, name: &str) -> Vec<String> {
    let section = SPECIFICATION.split(&format!("\n## {heading}\n")).nth(1).unwrap();
    let table = section.split("| setting | range | default | meaning |").nth(1).unwrap();
    let row = table.lines().find(|line| line.starts_with(&format!("| `{name}`"))).unwrap();
    row.trim_matches('|').split(" | ").map(|cell| cell.trim().replace('`', "")).collect()
}

fn check<S: Settings + fmt::Debug>(heading: &str) {
    for setting in S::ALL {
        let row = row(heading, setting.name);
        let [_, range, default, meaning] = row.as_slice() else { panic!("{row:?}") };
        // Without the number of a sentence that explains it.
        let range =
            [" [", " (["].iter().fold(&**range, |range, end| range.split(end).next().unwrap());
        assert_eq!(range, setting.kind.to_string(), "{}", setting.name);
        let shown = setting.words(&S::default());
        if shown.is_empty() {
            assert!(["none", "no", "all", "no limit"].contains(&&**default), "{row:?}");
        } else {
            let named = S::parse([(setting.name, default.as_str())]).unwrap();
            assert_eq!(named, S::default(), "{}", setting.name);
        }
        let first = setting.about.split(". ").next().unwrap();
        let about = first.trim_end_matches('.').replace('`', "");
        let begins = meaning.get(..about.len()).unwrap_or(meaning);
        assert_eq!(begins.to_lowercase(), about.to_lowercase(), "{}", setting.name);
    }
    let error = S::parse([("no-such", "1")]).unwrap_err();
    assert_eq!(
        error.text,
        format!("{} has no setting no-such; the settings are {}", S::OF, S::names())
    );
}

#[test]
fn the_specification_has_the_declared_settings() {
    check::<GroupSettings>("GROUP");
    check::<JobSettings>("JOB");
    check::<TopicSettings>("TOPIC");
}

#[test]
fn a_setting_is_given_once_and_within_its_range() {
    let changed =
        |words: &[(&'static str, &'static str)]| GroupSettings::parse(words.iter().copied());
    for (name, value) in [
        ("parallel", "0"),
        ("parallel", "1001"),
        ("delay", "25h"),
        ("lease", "99ms"),
        ("lease", "default"),
        ("circuit", "yes"),
        ("topics", "a,dead-letter"),
        ("key", "attr:"),
        ("key", "attr:a=b"),
        ("key", "attr:ä"),
    ] {
        assert!(changed(&[(name, value)]).is_err(), "{name}={value}");
    }
    assert_eq!(
        changed(&[("lease", "1s"), ("lease", "2s")]).unwrap_err().text,
        "lease= is given twice"
    );
    let words = "topics=a,b key=attr:site parallel=2 delay=1500ms lease=5m max-attempts=1 \
                 max-losses=100 backoff=0 page-ready=off circuit=off";
    let pairs = words.split(' ').map(|word| word.split_once('=').unwrap());
    let settings = GroupSettings::parse(pairs).unwrap();
    assert_eq!(settings.to_string(), words);
    let default = settings.changed([("delay", "default")]).unwrap();
    assert_eq!(default.delay_ms, None);
}

#[test]
fn conditions_are_given_one_by_one() {
    let set = |settings: &GroupSettings, words: &[&'static str]| {
        settings.changed(words.iter().map(|word| ("where", *word))).map_err(|error| error.text)
    };
    let two = set(&GroupSettings::default(), &["a=1,2", "b!="]).unwrap();
    assert!(two.to_string().ends_with(" circuit=on where=a=1,2 where=b!="), "{two}");
    assert_eq!(set(&two, &["a=1,2", "b!="]).unwrap(), two, "those before are replaced");
    assert_eq!(set(&two, &["c=3"]).unwrap().filter.conditions().len(), 1);
    assert_eq!(set(&two, &["none"]).unwrap(), GroupSettings::default());
    assert!(set(&two, &["a"]).unwrap_err().contains("<key>=<value>"));
    assert_eq!(set(&two, &["a=b"; 9]).unwrap_err(), "where= may be given at most 8 times");
    let line = format!("g {two}");
    assert_eq!(GroupStatus::parse(&line).settings, two);
    let object = serde_json::to_value(GroupStatus::parse(&line)).unwrap();
    assert_eq!(object["where"], serde_json::json!(["a=1,2", "b!="]));
}

#[test]
fn bytes_are_counted_in_powers_of_1024() {
    let parse = |text| TopicSettings::parse([("retain-bytes", text)]);
    for (text, bytes) in [
        ("1048576", 1 << 20),
        ("1024k", 1 << 20),
        ("1m", 1 << 20),
        ("17179869183g", (u64::MAX >> 30) << 30),
    ] {
        assert_eq!(parse(text).unwrap().retain_bytes, bytes, "{text}");
    }
    for text in ["", "0", "1048575", "1023k", "17179869184g", "+2m", "-2m", "2 m", "2M", "2mb", "m"]
    {
        assert!(parse(text).is_err(), "{text:?}");
    }
}

proptest! {
    #[test]
    fn what_is_shown_can_be_given(
        sync in prop::sample::select(Sync::ALL.to_vec()),
        retain_bytes in prop_oneof![1_u64 << 20.., (1..1_u64 << 30).prop_map(|n| n << 20)],
        retain_age_ms in 0..=DURATION_MS_MAX,
    ) {
        let settings = TopicSettings { sync, retain_bytes, retain_age_ms };
        let shown = settings.to_string();
        let words = shown.split(' ').map(|word| word.split_once('=').unwrap());
        prop_assert_eq!(TopicSettings::parse(words), Ok(settings));
    }
}
