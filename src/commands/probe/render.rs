//! `tidings probe render`: shows whether a page needs a browser, and what the crawler's browser
//! makes of it.

#![expect(clippy::disallowed_methods, reason = "a request has a deadline")]

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use tidings_browser::pool::PoolConfig;
use tidings_browser::process::{LaunchConfig, Launcher};
use tidings_browser::visit::{
    Answer, Fetch, Page, PageError, PageLimits, Rendered, Request, RequestResult,
};
use tidings_browser::{Browsers, BrowsersConfig};
use tidings_documents::page::{PageContent, PageOptions, PageSigns};
use tidings_protocol::CanonicalUrl;
use tidings_subscriber::KeepBodies;
use tidings_subscriber::fetch::{FetchPurpose, FetchRequest, Fetcher, PartRequest};
use tidings_subscriber::render_auto::{FetchedForm, Gain, Verdict};
use tidings_subscriber::rendered_page::{
    content_of, failed, page_of, pairs, part_request, refused,
};
use tidings_subscriber::report::Rendering;
use tidings_subscriber::robots::{RobotsRules, product_token};
use tidings_subscriber::sink::rendered::RenderRow;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::flags::FetchFlags;
use super::robots::fetch_robots;
use super::source::{FetchedPage, fetch};
use super::{JsonQuery, write_row};
use crate::services::browser::BrowserPageFlags;
use crate::terminal::failure::Failure;
use crate::terminal::output::{
    format_bytes, format_count, format_duration, plural, print_text, terminal_safe_json,
};

/// The columns of the names in the text.
const NAME_WIDTH: usize = 10;

/// The arguments of `tidings probe render`.
#[derive(Debug, Args)]
pub(crate) struct RenderArgs {
    /// The URL of a page; without it, JSON lines from standard input, which are not rendered
    #[arg(value_name = "URL")]
    pub(super) what: Option<String>,

    /// Store an image of the rendered page in this file (PNG)
    #[arg(id = "typed_screenshot", long = "screenshot", value_name = "FILE", requires = "what")]
    screenshot: Option<PathBuf>,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    fetch: FetchFlags,

    /// The browser to render with: a path or a name, or auto for the Chromium that is installed
    /// [default: auto]
    #[arg(long, value_name = "PROGRAM", help_heading = "Pages that need a browser")]
    browser: Option<PathBuf>,

    #[command(flatten)]
    page: BrowserPageFlags,
}

/// Reads `body_b64`, `headers`, and `base`, the URL of the page.
pub(super) fn answer(query: &JsonQuery) -> Result<Value, String> {
    let content = super::page(query, PageOptions { signs: true, ..PageOptions::default() })?;
    Ok(auto_json(&content.signs.unwrap_or_default()))
}

/// Fetches a page as the crawler would, judges it, renders it, and prints the result.
pub(super) async fn run(what: &str, args: &RenderArgs) -> Result<(), Failure> {
    let config = args.fetch.config();
    let mut page = fetch(what, &args.fetch).await?;
    let reader = page.fetched.page.take();
    let content = reader.map(|reader| reader.finish(&page.url)).unwrap_or_default();
    let Some(signs) = content.signs else {
        return Err(Failure::failed(format!("{} is not an HTML page", page.url)));
    };
    let mut result = json!({
        "url": page.url.as_str(),
        "status": page.fetched.status,
        "auto": auto_json(&signs),
        "fetched": content_json(&content),
    });
    if !args.json {
        // Before the browser starts, which may fail.
        print(&fetched_text(&page, &content, &signs))?;
    }
    let launch = args.page.launch(args.browser.as_deref(), &config.agent)?;
    let parts = Arc::new(Parts {
        fetcher: page.fetcher,
        token: product_token(&config.agent).to_owned(),
        timeout: config.request_timeout,
        rules: Mutex::default(),
    });
    let started = Instant::now();
    let mut rendered = match page_of(&page.url, &page.fetched, args.page.load()) {
        Ok(page) => {
            let page = Page { screenshot: args.screenshot.is_some(), ..page };
            render(page, Arc::clone(&parts), launch, args.page.limits()).await?
        }
        Err(error) => Err(error),
    };
    let duration = started.elapsed();
    let image = rendered.as_mut().ok().and_then(|rendered| rendered.screenshot.take());
    let form = FetchedForm::of(&content);
    let (read, gain) = match &rendered {
        Ok(rendered) => {
            let headers = &page.fetched.headers;
            let read = content_of(&page.url, headers, content, rendered, &parts.fetcher);
            let gain = form.gain(&page.url, &read);
            (read, gain)
        }
        Err(_) => (content, Gain::default()),
    };
    let rendering = Rendering::new(rendered, None, duration, Vec::new());
    if args.json {
        if rendering.result.is_ok() {
            result["rendered"] = content_json(&read);
            result["gain"] = json!({ "links": gain.links, "has_text": gain.has_text });
        }
        result["render"] = json!(RenderRow::of(&rendering));
        print(&format!("{}\n", terminal_safe_json(&result.to_string())))?;
    } else {
        print(&rendered_text(&rendering, &read, gain))?;
    }
    match &args.screenshot {
        _ if rendering.result.is_err() => Err(Failure::Unsuccessful),
        Some(file) => store(image, file),
        None => Ok(()),
    }
}

fn print(text: &str) -> Result<(), Failure> {
    print_text(text).map_err(Failure::from_output)
}

/// Renders one page in a browser of its own.
async fn render(
    page: Page,
    parts: Arc<Parts>,
    launch: LaunchConfig,
    limits: PageLimits,
) -> Result<Result<Rendered, PageError>, Failure> {
    let launcher = Launcher::new(launch)
        .await
        .map_err(|error| Failure::failed(format!("cannot render pages: {error}")))?;
    let pool = PoolConfig { slots: 1, browsers: 1, ..PoolConfig::default() };
    let config = BrowsersConfig { pool, page: limits, ..BrowsersConfig::default() };
    let (browsers, task) = Browsers::new(launcher, config, 0);
    let rendered = browsers.render(page, parts).await;
    browsers.stop().await;
    task.ended().await;
    Ok(rendered)
}

fn store(image: Option<Vec<u8>>, file: &Path) -> Result<(), Failure> {
    let name = file.display();
    let image = image
        .ok_or_else(|| Failure::failed(format!("{name} is not written: the page has no image")))?;
    fs::write(file, image).map_err(|error| Failure::failed(format!("cannot write {name}: {error}")))
}

fn auto_json(signs: &PageSigns) -> Value {
    let (verdict, cause) = match Verdict::of(signs) {
        Verdict::Render(cause) => ("render", Some(cause.as_str())),
        Verdict::Maybe => ("maybe", None),
        Verdict::No => ("no", None),
    };
    json!({
        "verdict": verdict,
        "cause": cause,
        "text_chars": signs.text_chars,
        "links": signs.links,
        "script_links": signs.script_links,
        "parts": signs.parts,
        "script_files": signs.script_files,
        "script_bytes": signs.script_bytes,
        "has_empty_root": signs.has_empty_root,
        "asks_for_scripts": signs.asks_for_scripts,
        "declares_scripts": signs.declares_scripts,
    })
}

fn content_json(content: &PageContent) -> Value {
    json!({
        "title": content.title,
        "links": content.links.len(),
        "text_chars": content.signs.map(|signs| signs.text_chars),
    })
}

fn fetched_text(page: &FetchedPage, content: &PageContent, signs: &PageSigns) -> String {
    let verdict = match Verdict::of(signs) {
        Verdict::Render(cause) => format!("rendered: {}", cause.explanation()),
        Verdict::Maybe => {
            "rendered if other pages of its host gain by it: it may lack a part".to_owned()
        }
        Verdict::No if signs.script_files == 0 && signs.script_bytes == 0 => {
            "not rendered: it has no scripts".to_owned()
        }
        Verdict::No => "not rendered: it has its content".to_owned(),
    };
    let files = plural(signs.script_files as u64, "file");
    let mut text = String::new();
    row(&mut text, "page", page.url.as_str());
    row(&mut text, "status", &page.fetched.status.unwrap_or_default().to_string());
    row(&mut text, "auto", &verdict);
    write_content(&mut text, content);
    let inline = format_bytes(signs.script_bytes as u64);
    row(&mut text, "scripts", &format!("{files}, and {inline} in the page"));
    text
}

fn rendered_text(rendering: &Rendering, read: &PageContent, gain: Gain) -> String {
    let mut text = String::from("\n");
    let page = match &rendering.result {
        Ok(page) => page,
        Err(error) => {
            row(&mut text, "rendered", &format!("no: {error}"));
            return text;
        }
    };
    let time = format_duration(rendering.duration);
    let cut = if page.cut.is_some() { ", while it still changed" } else { "" };
    row(&mut text, "rendered", &page.final_url);
    row(&mut text, "time", &format!("{time}{cut}"));
    write_content(&mut text, read);
    row(&mut text, "gain", &gain_text(gain));
    for opened in &page.opened {
        row(&mut text, "opened", &format!("{}: {}", opened.how.as_str(), opened.url));
    }
    for error in page.console_errors.iter().chain(&page.image_errors) {
        row(&mut text, "error", error);
    }
    let unlisted = match page.requests_unlisted {
        0 => String::new(),
        more => format!(", and {} that are not listed", format_count(more)),
    };
    let requests = plural(page.requests.len() as u64, "request");
    row(&mut text, "requests", &format!("{requests}{unlisted}"));
    for request in &page.requests {
        let result = match &request.result {
            RequestResult::Response(status, bytes) => format!("{status}, {}", format_bytes(*bytes)),
            RequestResult::Refused(reason) => format!("refused: {reason}"),
            RequestResult::Failed(reason) => format!("failed: {reason}"),
            RequestResult::Unanswered => "not answered".to_owned(),
        };
        // The result is first, because a long line is cut.
        row(
            &mut text,
            &format!("  {}", request.kind.as_str()),
            &format!("{result} {}", request.url),
        );
    }
    text
}

fn gain_text(gain: Gain) -> String {
    let links = plural(gain.links as u64, "new link");
    let text = if gain.has_text { ", and at least twice the text" } else { "" };
    if gain.is_some() { format!("{links} of this host{text}") } else { "nothing".to_owned() }
}

fn write_content(text: &mut String, content: &PageContent) {
    let chars = content.signs.map_or(0, |signs| signs.text_chars);
    row(text, "title", content.title.as_deref().unwrap_or("(none)"));
    row(text, "text", &plural(chars as u64, "character"));
    row(text, "links", &plural(content.links.len() as u64, "link"));
}

fn row(text: &mut String, name: &str, value: &str) {
    write_row(text, NAME_WIDTH, name, value);
}

/// Makes the requests of a page, one at a time.
struct Parts {
    fetcher: Fetcher,
    /// The product token that robots.txt rules are matched with.
    token: String,
    /// Of one request.
    timeout: Duration,
    /// By origin: the rules, or why there are none. Locked during a request.
    rules: Mutex<HashMap<String, Result<RobotsRules, String>>>,
}

impl Fetch for Parts {
    fn answer(&self, request: Request) -> Pin<Box<dyn Future<Output = Answer> + Send + '_>> {
        Box::pin(async move { self.fetch(&request).await.unwrap_or_else(|refused| refused) })
    }
}

impl Parts {
    async fn fetch(&self, request: &Request) -> Result<Answer, Answer> {
        let (url, method, headers) = part_request(request)?;
        let mut known = self.rules.lock().await;
        let rules = match known.entry(url.origin().to_owned()) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(self.fetch_rules(&url).await),
        };
        let rules = rules.as_ref().map_err(|error| refused(error.clone()))?;
        if !rules.allows(url.path_and_query()) {
            return Err(refused("robots.txt"));
        }
        let body_bytes_max = request.body_bytes_max;
        let part = PartRequest { method: &method, headers: &headers, body_bytes_max };
        let (purpose, keep) = (FetchPurpose::Part(part), KeepBodies::default());
        let deadline = Instant::now() + self.timeout;
        let request = FetchRequest { url: &url, purpose, validators: None, keep, deadline };
        let fetched = self.fetcher.fetch(&request).await;
        if let Some(failure) = fetched.failure {
            return Err(failed(&failure));
        }
        let (status, headers) = (fetched.status.unwrap_or_default(), pairs(&fetched.headers));
        Ok(Answer::Response { status, headers, body: fetched.text })
    }

    async fn fetch_rules(&self, url: &CanonicalUrl<'_>) -> Result<RobotsRules, String> {
        let (_, robots) = fetch_robots(&self.fetcher, url, self.timeout, |_, _| {}).await?;
        Ok(RobotsRules::parse(&robots, &self.token))
    }
}

#[cfg(test)]
mod tests {
    use data_encoding::BASE64;
    use tidings_browser::visit::{Cut, How, Kind, Opened, RequestRecord};

    use super::*;

    fn judge(html: &str) -> Value {
        let query =
            json!({ "body_b64": BASE64.encode(html.as_bytes()), "base": "http://a.example/" });
        answer(query.as_object().unwrap()).unwrap()
    }

    #[test]
    fn a_query_is_judged_without_a_browser() {
        let script = "<script src=a.js></script>";
        for (html, verdict, cause) in [
            ("<div id=root></div>", "render", Some("empty-root")),
            ("<p>text", "render", Some("little-text")),
            ("<a href=/1>one</a> <a href=/2>two</a>", "maybe", None),
        ] {
            let auto = judge(&format!("{html}{script}"));
            assert_eq!(
                (&auto["verdict"], &auto["cause"]),
                (&json!(verdict), &json!(cause)),
                "{html}"
            );
            assert_eq!(judge(html)["verdict"], "no", "without scripts: {html}");
        }
        assert_eq!(judge("<p>text")["text_chars"], 4);
        let query = json!({ "body_b64": "" });
        assert_eq!(answer(query.as_object().unwrap()).unwrap_err(), "`base` is missing");
    }

    #[test]
    fn what_a_page_did_is_one_line_each() {
        let request = |kind, url: &str, result| RequestRecord { url: url.to_owned(), kind, result };
        let long = format!("http://a.example/{}", "x".repeat(300));
        let page = Rendered {
            final_url: "http://a.example/2".to_owned(),
            cut: Some(Cut::Time),
            opened: vec![Opened { url: "http://b.example/".to_owned(), how: How::Popup }],
            console_errors: vec!["Uncaught\n\u{1b}[2J".to_owned()],
            requests: vec![
                request(Kind::Script, "http://a.example/s", RequestResult::Response(404, 1234)),
                request(Kind::Image, &long, RequestResult::Refused("kind".to_owned())),
                request(
                    Kind::Data,
                    "http://a.example/d",
                    RequestResult::Failed("reset".to_owned()),
                ),
                request(Kind::Frame, "http://a.example/f", RequestResult::Unanswered),
            ],
            requests_unlisted: 1200,
            ..Rendered::default()
        };
        let rendering = Rendering::new(Ok(page), None, Duration::from_millis(15_200), Vec::new());
        let gain = Gain { links: 2, has_text: false };
        let text = rendered_text(&rendering, &PageContent::default(), gain);
        let cut =
            format!("  image    refused: kind {}…", &long[..200 - 1 - "refused: kind ".len()]);
        let expected = [
            "",
            "rendered   http://a.example/2",
            "time       15 s, while it still changed",
            "title      (none)",
            "text       0 characters",
            "links      0 links",
            "gain       2 new links of this host",
            "opened     popup: http://b.example/",
            "error      Uncaught \\u{1b}[2J",
            "requests   4 requests, and 1,200 that are not listed",
            "  script   404, 1.2 kB http://a.example/s",
            &cut,
            "  data     failed: reset http://a.example/d",
            "  frame    not answered http://a.example/f",
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), expected);
    }
}
