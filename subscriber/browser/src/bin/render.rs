//! Renders URLs, for the tests of this crate: prints one line of JSON for each, in the order in
//! which they end. Documents and parts are fetched by a small client of HTTP/1.0.
//!
//! ```text
//! render [browser=PATH] [isolation=off] [slots=N] [browsers=N] [pages=N] [settle-ms=N]
//!     [time-ms=N] [images] [screenshot] [pdf] URL..
//! ```

#![expect(clippy::print_stdout, reason = "the output of a program")]
#![expect(clippy::disallowed_methods, reason = "renders several pages at once")]

use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{env, io};

use serde_json::{Value, json};
use tidings_browser::pool::PoolConfig;
use tidings_browser::process::{Isolation, LaunchConfig, Launcher, sandbox};
use tidings_browser::visit::{Answer, Fetch, Load, Page, PageError, Rendered, Request};
use tidings_browser::{Browsers, BrowsersConfig, program};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

fn main() -> ExitCode {
    let mut args = env::args_os().skip(1).peekable();
    if args.next_if(|word| word == "browser-sandbox").is_some() {
        return sandbox::run(args);
    }
    let words: Vec<String> = env::args().skip(1).collect();
    Runtime::new().and_then(|runtime| runtime.block_on(run(&words))).expect("it runs");
    ExitCode::SUCCESS
}

async fn run(words: &[String]) -> io::Result<()> {
    let has = |word: &str| words.iter().any(|it| it == word);
    let value = |name: &str| words.iter().find_map(|it| it.strip_prefix(name)?.strip_prefix('='));
    let number = |name: &str| value(name).map(|it| it.parse::<u64>().expect("a number"));
    let launcher = LaunchConfig {
        program: program::find(value("browser").map(str::as_ref)).map_err(io::Error::other)?,
        sandbox_words: vec!["browser-sandbox".into()],
        starter: None,
        isolation: if value("isolation") == Some("off") {
            Isolation::Off
        } else {
            Isolation::Required
        },
        no_sandbox: false,
        user_agent: "tidings-test".to_owned(),
    };
    let mut config = BrowsersConfig {
        pool: PoolConfig { pages_max: 20, ..PoolConfig::default() },
        ..BrowsersConfig::default()
    };
    if let Some(slots) = number("slots") {
        config.pool.slots = usize::try_from(slots).expect("a few");
    }
    if let Some(browsers) = number("browsers") {
        config.pool.browsers = usize::try_from(browsers).expect("a few");
    }
    if let Some(pages) = number("pages") {
        config.pool.pages_max = u32::try_from(pages).expect("a few");
    }
    if let Some(settle) = number("settle-ms") {
        config.page.settle_max = Duration::from_millis(settle);
    }
    if let Some(time) = number("time-ms") {
        config.page.time_max = Duration::from_millis(time);
    }
    let slots = config.pool.slots;
    let launcher = Launcher::new(launcher).await.map_err(io::Error::other)?;
    let (browsers, task) = Browsers::new(launcher, config, u64::from(std::process::id()));
    // Documents that wait for a browser are in memory.
    let documents = Arc::new(Semaphore::new(2 * slots));
    let mut pages = JoinSet::new();
    for url in words.iter().filter(|word| word.starts_with("http")).cloned() {
        let document = Arc::clone(&documents).acquire_owned().await.expect("it is not closed");
        let browsers = browsers.clone();
        let load = Load { images: has("images"), ..Load::default() };
        let (screenshot, pdf) = (has("screenshot"), has("pdf"));
        pages.spawn(async move {
            let _document = document;
            let started = Instant::now();
            let rendered = match get("GET", &url).await {
                Ok((status, headers, body)) => {
                    let url = url.clone();
                    let page = Page { url, status, headers, body, load, screenshot, pdf };
                    browsers.render(page, Arc::new(Client)).await
                }
                Err(error) => Err(PageError::Browser(error.to_string())),
            };
            let mut line = line(rendered);
            line["page"] = url.into();
            line["ms"] = json!(u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX));
            println!("{line}");
        });
    }
    while let Some(ended) = pages.join_next().await {
        ended.expect("a page does not panic");
    }
    browsers.stop().await;
    task.ended().await;
    Ok(())
}

fn line(rendered: Result<Rendered, PageError>) -> Value {
    let page = match rendered {
        Ok(page) => page,
        Err(error) => return json!({ "error": error.to_string() }),
    };
    let requests = page.requests.iter().map(|it| {
        json!({ "url": it.url, "kind": format!("{:?}", it.kind), "result": format!("{:?}", it.result) })
    });
    let opened = page.opened.iter().map(|it| json!([format!("{:?}", it.how), it.url]));
    json!({
        "html": page.html,
        "url": page.final_url,
        "title": page.title,
        "links": page.links.iter().map(|it| json!([it.url, it.is_nofollow])).collect::<Vec<_>>(),
        "opened": opened.collect::<Vec<_>>(),
        "cut": page.cut.map(|cut| format!("{cut:?}")),
        "console": page.console_errors,
        "requests": requests.collect::<Vec<_>>(),
        "unlisted": page.requests_unlisted,
        "dialogs": page.dialogs,
        "png": page.screenshot.map(|it| it.starts_with(b"\x89PNG") && it.len() > 100),
        "image_errors": page.image_errors,
        "pdf": page.pdf.map(|it| it.starts_with(b"%PDF") && it.len() > 100),
    })
}

struct Client;

impl Fetch for Client {
    fn answer(&self, request: Request) -> Pin<Box<dyn Future<Output = Answer> + Send + '_>> {
        Box::pin(async move {
            match get(&request.method, &request.url).await {
                Ok((_, _, body)) if body.len() as u64 > request.body_bytes_max => {
                    Answer::Refused("size".to_owned())
                }
                Ok((status, headers, body)) => Answer::Response { status, headers, body },
                Err(error) => Answer::Failed(error.to_string()),
            }
        })
    }
}

/// A request, without TLS.
async fn get(method: &str, url: &str) -> io::Result<(u16, Vec<(String, String)>, Vec<u8>)> {
    let bad = || io::Error::other(format!("cannot fetch {url}"));
    let rest = url.strip_prefix("http://").ok_or_else(bad)?;
    let (host, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let path = path.split('#').next().filter(|it| it.starts_with('/')).unwrap_or("/");
    let mut stream = TcpStream::connect(host).await?;
    stream
        .write_all(format!("{method} {path} HTTP/1.0\r\nHost: {host}\r\n\r\n").as_bytes())
        .await?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await?;
    let end = bytes.windows(4).position(|it| it == b"\r\n\r\n").ok_or_else(bad)?;
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|it| it.split(' ').nth(1)?.parse().ok()).ok_or_else(bad)?;
    let fields = lines.filter_map(|line| line.split_once(": "));
    let fields = fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    Ok((status, fields, bytes.split_off(end + 4)))
}
