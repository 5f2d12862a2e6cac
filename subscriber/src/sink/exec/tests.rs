use std::fs;
use std::path::Path;

use super::super::testing::{file_of, record, rendering, transient};
use super::*;
use crate::sink::{EarlierRecord, SinkConfig, SinkContext, Sinks};
use crate::spool::Spools;

/// A shell that runs this script.
fn shell(script: &str) -> Vec<OsString> {
    ["sh", "-c", script].map(OsString::from).to_vec()
}

fn open(script: &str) -> Exec {
    Exec::open(&shell(script), Programs::default()).unwrap()
}

fn lines(path: &Path) -> Vec<String> {
    fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned).collect()
}

#[test]
fn a_program_is_run_once_for_each_page_with_the_page_in_its_environment() {
    let folder = tempfile::tempdir().unwrap();
    let (out, spools) =
        (folder.path().join("out"), Spools::open(&folder.path().join("bodies")).unwrap());
    let script = format!(
        r#"echo "$PAGE_ID $PAGE_URL $PAGE_STATUS $PAGE_JOB.$PAGE_PASS $PAGE_ATTEMPT $PAGE_ITEM$PAGE_SOURCE $(cat "$PAGE_PATH")" >> {}"#,
        out.display()
    );
    let mut exec = open(&script);
    let mut page = record(1, 2);
    page.report.url = "http://site.example/$(touch oops);`x`'\"".to_owned();
    page.body = Some(file_of(&spools, b"the body"));
    (page.item, page.source) = (Some("5".into()), Some("@feed".into()));
    let page = Arc::new(page);
    // A repeated page, a failed one, and one that will be retried.
    let mut failed = record(3, 1);
    failed.report.outcome = PageOutcome::Failed;
    exec.write(&[Arc::clone(&page)]).unwrap();
    exec.write(&[page, Arc::new(failed), Arc::new(transient(4, 1))]).unwrap();
    let expected =
        "crawlers.3.1 http://site.example/$(touch oops);`x`'\" 200 docs.2 2 5@feed the body";
    assert_eq!(lines(&out), [expected]);
    assert!(exec.take_refused().is_empty());
}

#[test]
fn a_program_gets_what_a_browser_made_of_a_page() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let spools = Spools::open(&folder.path().join("spool")).unwrap();
    let script = format!(
        r#"cat "$PAGE_RENDERED_PATH" "$PAGE_PDF_PATH" >> {0}; tail -c 3 "$PAGE_SCREENSHOT_PATH" >> {0}"#,
        out.display()
    );
    let rendering = Some(rendering(&spools, folder.path()));
    let mut exec = open(&script);
    exec.write(&[Arc::new(PageRecord { rendering, ..record(1, 1) })]).unwrap();
    assert_eq!(lines(&out), ["<title>Rendered</title>%PDFPNG"]);
    let script = r#"test -z "$PAGE_RENDERED_PATH$PAGE_SCREENSHOT_PATH$PAGE_PDF_PATH""#;
    let mut exec = open(script);
    exec.write(&[Arc::new(record(2, 1))]).unwrap();
    assert!(exec.take_refused().is_empty());
}

#[test]
fn a_page_that_a_program_refuses_has_no_earlier_record() {
    let folder = tempfile::tempdir().unwrap();
    let program = shell(r#"test "$PAGE_ATTEMPT" = 2"#);
    let sinks = [SinkConfig::Sqlite(folder.path().join("pages.db")), SinkConfig::Exec(program)];
    let context = SinkContext {
        agent: "",
        extraction_mode: None,
        exec_variables: &[],
        bodies: false,
        metrics: Arc::default(),
    };
    let (sinks, _) = Sinks::open(&sinks, &context).unwrap();
    let runtime = Builder::new_current_thread().build().unwrap();
    let url = record(1, 1).report.url;
    let earlier = || runtime.block_on(sinks.earlier_record(&url, &record(9, 1).page, true));
    let mut page = record(1, 1);
    page.original = sinks.original_of(&page);
    runtime.block_on(sinks.store(&Arc::new(page))).unwrap_err();
    assert_eq!(earlier(), EarlierRecord::Never);
    let mut page = record(1, 2);
    assert!(!sinks.have_body_of(None));
    page.original = sinks.original_of(&page);
    runtime.block_on(sinks.store(&Arc::new(page))).unwrap();
    assert!(sinks.have_body_of(earlier().newest()));
}

#[test]
fn a_page_is_refused_by_an_exit_code_and_may_come_again() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let script = format!(r#"echo $PAGE_ATTEMPT >> {}; test "$PAGE_ATTEMPT" = 2"#, out.display());
    let mut exec = open(&script);
    exec.write(&[Arc::new(record(1, 1))]).unwrap();
    let refused = exec.take_refused();
    assert_eq!(refused, [(record(1, 1).page, "sh: exit_code_1".to_owned())]);
    exec.write(&[Arc::new(record(1, 2))]).unwrap();
    assert!(exec.take_refused().is_empty());
    assert_eq!(lines(&out), ["1", "2"]);
}

#[test]
fn a_program_that_cannot_be_run_is_trouble_and_not_the_pages_fault() {
    let mut exec = Exec::open(&["/no/such/program".into()], Programs::default()).unwrap();
    let error = exec.write(&[Arc::new(record(1, 1))]).unwrap_err();
    assert!(error.text.contains("No such file"), "{error}");
}

#[test]
fn no_program_starts_after_all_were_killed() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let programs = Programs::default();
    let mut exec =
        Exec::open(&shell(&format!("echo ran >> {}", out.display())), programs.clone()).unwrap();
    exec.write(&[Arc::new(record(1, 1))]).unwrap();
    programs.kill();
    exec.write(&[Arc::new(record(2, 1))]).unwrap_err();
    assert_eq!(lines(&out), ["ran"]);
}

#[test]
fn a_command_is_split_at_white_space_outside_quotes() {
    let words = |text| {
        words(text).map(|words| {
            words.iter().map(|word| word.to_str().unwrap().to_owned()).collect::<Vec<_>>()
        })
    };
    assert_eq!(
        words(" index  --to 'a b'\"c d\" "),
        Some(vec!["index".into(), "--to".into(), "a bc d".into()])
    );
    assert_eq!(words("x ''"), Some(vec!["x".into(), String::new()]));
    assert_eq!(words("  "), None);
    assert_eq!(words("a 'b"), None);
}
