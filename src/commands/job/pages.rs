//! `tidings job failed` and `tidings job pages`: the pages of a pass and their outcomes.

use std::collections::BTreeMap;

use clap::Args;
use tidings_protocol::status::{JobState, JobStatus, PageStatus, PassCounts};
use tidings_protocol::{JobAction, JobName, PassName, check_reasons, reason_of};
use tidings_subscriber::traps::Trap;

use super::{NAME, command};
use crate::client::job_pages::{self, KnownPages, PassQuery};
use crate::client::manage::{BrokerClient, GroupFlag, OutputFlags, json_line, print_table, spaced};
use crate::flags::one_word;
use crate::terminal::failure::Failure;
use crate::terminal::output::{Console, format_count, is_terminal, plural, printable};

/// Behind the help of `tidings job failed`.
pub(super) const FAILED_EXAMPLES: &str = "\
Examples:
  tidings job failed docs                         each page that failed, and why
  tidings job failed docs --reason dns,timeout    only those with these reasons
  tidings job failed docs --urls > again.txt      the URLs, one on each line
  tidings job failed docs --pass 1 --json         of the first pass, with all that is known

Reads the topic page-ready. A page that failed and was fetched later counts as fetched. Standard
error has a summary by reason, and says if the topic no longer has all events of the pass.
`tidings job retry` fetches these pages again.

Exit codes: 0 no page failed; 1 some failed, may have failed, or the job does not exist; 2 wrong
usage.";

/// Behind the help of `tidings job pages`.
pub(super) const PAGES_EXAMPLES: &str = "\
Examples:
  tidings job pages docs                          each page and its outcome
  tidings job pages docs --json | jq .ms          with all that is known
  tidings job pages docs --pass 1 --urls          the URLs of the first pass

Reads the topic page-ready. Standard error has a summary by outcome, and says if the topic no longer
has all events of the pass. Pages that wait, and those over the budget of the job, have no outcome.

Exit codes: 0 success; 1 the job does not exist, or failed; 2 wrong usage.";

/// Longer words are cut in tables on a terminal, and in summaries.
const WORD_CHARS_MAX: usize = 60;

/// Flags that select pages of a job.
#[derive(Debug, Args)]
pub(crate) struct PageFlags {
    /// The job
    pub(super) job: JobName,

    /// Only pages with one of these reasons, such as status, dns or timeout
    #[arg(long, value_name = "WORD,..", value_delimiter = ',', value_parser = one_word)]
    reason: Vec<String>,

    /// The pass, from 1 [default: the newest]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pass: Option<u64>,

    #[command(flatten)]
    pub(super) group: GroupFlag,

    #[command(flatten)]
    pub(super) output: OutputFlags,
}

/// The flags of `tidings job failed` and `tidings job pages`.
#[derive(Debug, Args)]
pub(crate) struct PagesArgs {
    #[command(flatten)]
    of: PageFlags,

    /// Print only the URLs
    #[arg(long, conflicts_with = "json")]
    urls: bool,
}

/// Prints the pages that failed.
pub(super) async fn failed(args: PagesArgs) -> Result<(), Failure> {
    let found = list(&args, true, "STATUS> REASON ERROR URL", |page| {
        let error = page.error.as_deref().map(spaced);
        vec![status(page), word(Some(reason_of(page))), word(error.as_deref()), url(page)]
    })
    .await?;
    if found.is_none() { Ok(()) } else { Err(Failure::Unsuccessful) }
}

/// Prints all pages.
pub(super) async fn pages(args: PagesArgs) -> Result<(), Failure> {
    list(&args, false, "OUTCOME STATUS> REASON URL", |page| {
        vec![word(Some(&page.outcome)), status(page), word(page.reason.as_deref()), url(page)]
    })
    .await
    .map(drop)
}

/// Prints the selected pages in these columns, then a summary.
async fn list(
    args: &PagesArgs,
    only_failed: bool,
    headings: &str,
    row: impl Fn(&PageStatus) -> Vec<String>,
) -> Result<SelectedPages, Failure> {
    let PagesArgs { of, urls } = args;
    let broker = BrokerClient::connect(&of.output.broker, NAME).await?;
    let job = of.show(&broker).await?;
    let mut console = Console::new();
    let found = of.read(&job, only_failed, &mut console).await?;
    let pages = &found.pages;
    if of.output.json {
        pages.iter().try_for_each(|page| console.line(&json_line(page)))?;
    } else if *urls {
        pages.iter().try_for_each(|page| console.line(&url(page)))?;
    } else if !pages.is_empty() {
        print_table(&mut console, headings, pages.iter().map(row))?;
    }
    console.note(&if only_failed { failed_line(&found) } else { outcome_line(pages) });
    Ok(found)
}

/// The pages that the flags select.
#[derive(Debug)]
pub(super) struct SelectedPages {
    /// Sorted by URL.
    pub(super) pages: Vec<PageStatus>,
    /// Events of the pass are missing, which was noted.
    is_incomplete: bool,
}

impl SelectedPages {
    /// Whether it is known that there are none.
    fn is_none(&self) -> bool {
        self.pages.is_empty() && !self.is_incomplete
    }

    /// What to say instead of a list without pages that failed.
    pub(super) fn none_line(&self) -> &'static str {
        if self.is_incomplete { "no failed page is known" } else { "nothing failed" }
    }
}

impl PageFlags {
    /// The state of the job.
    pub(super) async fn show(&self, broker: &BrokerClient<'_>) -> Result<JobStatus, Failure> {
        let show = command(JobAction::Show, Some(&self.job), &self.group.group, Vec::new());
        let job = JobStatus::parse(&broker.request(&show).await?.ok);
        match self.pass {
            Some(pass) if pass > job.pass => {
                Err(Failure::failed(format!("the newest pass of {} is {}", self.job, job.pass)))
            }
            _ => Ok(job),
        }
    }

    /// The selected pages. A note says if some may be missing.
    pub(super) async fn read(
        &self,
        job: &JobStatus,
        only_failed: bool,
        console: &mut Console,
    ) -> Result<SelectedPages, Failure> {
        let pass = self.pass.unwrap_or(job.pass);
        let is_final = pass == job.pass && job.state == JobState::Done;
        let counted = is_final.then(|| counted(&job.counts, only_failed));
        let (name, group) = (&self.job, &self.group.group);
        let of = PassName { job: name, group, number: job.number, pass };
        let query = PassQuery { of, only_failed, counted };
        let KnownPages { mut pages, known_from, has_events } =
            job_pages::read(&self.output.broker.broker, &query, console).await?;
        check_reasons(&self.reason, &pages, &Trap::ALL.map(Trap::as_str))
            .map_err(|error| Failure::Usage(format!("--reason {error}")))?;
        let known = pages.len() as u64;
        let is_trimmed = known_from.0 > 1;
        let missing = match counted {
            Some(counted) if known < counted => {
                let (known, counted) = (format_count(known), format_count(counted));
                Some(format!("only {known} of {counted} are known"))
            }
            None if pass < job.pass && !has_events => {
                Some(format!("nothing is known of pass {pass}"))
            }
            None if is_trimmed => Some("some may be missing".to_owned()),
            _ => None,
        };
        if let Some(missing) = &missing {
            let because = if is_trimmed {
                format!("page-ready has the events from number {} on", format_count(known_from.0))
            } else {
                let pages = if counted.is_some() { "the others" } else { "its pages" };
                format!("{pages} have no event on page-ready")
            };
            console.note(&format!("note: {missing}; {because}"));
        }
        if !self.reason.is_empty() {
            pages.retain(|page| self.reason.iter().any(|word| word == reason_of(page)));
        }
        Ok(SelectedPages { pages, is_incomplete: missing.is_some() })
    }
}

/// Pages of a pass that ended with an outcome, or failed.
fn counted(counts: &PassCounts, only_failed: bool) -> u64 {
    let PassCounts { completed, redirects, failed, robots, scope, trap, .. } = *counts;
    if only_failed { failed } else { completed + redirects + failed + robots + scope + trap }
}

/// `12 failed: 7 status, 3 dns, 2 timeout`.
fn failed_line(found: &SelectedPages) -> String {
    match &*count_by(&found.pages, reason_of) {
        "" => found.none_line().to_owned(),
        reasons => format!("{} failed: {reasons}", format_count(found.pages.len() as u64)),
    }
}

/// `15 pages: 12 done, 3 failed`.
fn outcome_line(pages: &[PageStatus]) -> String {
    match &*count_by(pages, |page| &page.outcome) {
        "" => "no outcome is known".to_owned(),
        outcomes => format!("{}: {outcomes}", plural(pages.len() as u64, "page")),
    }
}

/// The numbers of pages by a word, the largest first.
pub(super) fn count_by(pages: &[PageStatus], key: impl Fn(&PageStatus) -> &str) -> String {
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for page in pages {
        *counts.entry(key(page)).or_default() += 1;
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let counts = counts.into_iter().map(|(text, count)| {
        format!("{} {}", format_count(count), printable(text, WORD_CHARS_MAX))
    });
    counts.collect::<Vec<_>>().join(", ")
}

fn status(page: &PageStatus) -> String {
    page.status.map_or("-".to_owned(), |status| status.to_string())
}

/// A word of an event, safe for a terminal, or `-`.
fn word(word: Option<&str>) -> String {
    printable(word.unwrap_or("-"), if is_terminal() { WORD_CHARS_MAX } else { usize::MAX })
}

/// The URL of a page, safe for a terminal.
fn url(page: &PageStatus) -> String {
    printable(&page.url, usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_summary_are_safe_for_a_terminal() {
        let long = "x".repeat(WORD_CHARS_MAX + 1);
        let pages = ["dns", "\u{202e}dns", "dns", &long]
            .map(|word| PageStatus::parse(&format!("http://a.org/ outcome=failed reason={word}")));
        let cut = &long[..WORD_CHARS_MAX - 1];
        assert_eq!(count_by(&pages, reason_of), format!("2 dns, 1 {cut}…, 1 \\u{{202e}}dns"));
    }
}
