//! `tidings probe`: shows how the crawler reads something. With an argument it answers in words;
//! without one it reads JSON objects from standard input, one on each line, and answers them in
//! order.

mod address;
mod feed;
mod flags;
mod links;
mod render;
mod robots;
mod signature;
mod sitemap;
mod source;
mod surrogates;
mod url;

use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::sync::Arc;

use anyhow::Context;
use clap::{Args, Subcommand};
use data_encoding::BASE64_NOPAD;
use serde_json::{Map, Value, json};
use tidings_documents::page::{PageContent, PageOptions, PageReader};
use tidings_protocol::CanonicalUrl;

use crate::terminal::failure::Failure;
use crate::terminal::output::{self, printable};

/// The longest line of standard input, in bytes; a longer one is answered with an error.
const LINE_BYTES_MAX: u64 = 1 << 20;

/// The longest text of a site that is shown, in characters.
const SHOWN_CHARS_MAX: usize = 200;

/// The subcommands of `tidings probe`.
#[derive(Debug, Subcommand)]
pub(crate) enum Probe {
    /// Check whether robots.txt allows a URL
    Robots(ProbeArgs),
    /// Show the canonical form and the key of a URL
    Url(url::UrlArgs),
    /// Show the items of an RSS, Atom or JSON feed
    Feed(ProbeArgs),
    /// Show the entries of a sitemap
    Sitemap(ProbeArgs),
    /// Show the title, links and crawler directives of a page
    Links(ProbeArgs),
    /// Show whether a page needs a browser, and what the crawler's browser makes of it
    Render(render::RenderArgs),
    /// Check whether an address may be fetched from
    Address(address::AddressArgs),
    /// Verify the signature of a webhook
    Signature(signature::SignatureArgs),
}

/// The arguments of most subcommands.
#[derive(Debug, Args)]
pub(crate) struct ProbeArgs {
    /// What to inspect; without it, JSON lines from standard input
    #[arg(value_name = "WHAT")]
    what: Option<String>,

    #[command(flatten)]
    fetch: flags::FetchFlags,
}

/// A query of a script: the members of its JSON object.
type JsonQuery = Map<String, Value>;

/// Answers a query; the error is a line for a person.
type AnswerFn<'a> = Box<dyn Fn(&JsonQuery) -> Result<Value, String> + 'a>;

/// Answers the argument, or all queries of standard input.
pub(crate) async fn run(probe: Probe) -> Result<(), Failure> {
    let (what, answer): (_, AnswerFn) = match &probe {
        Probe::Robots(args) => (&args.what, Box::new(robots::answer)),
        Probe::Url(args) => (&args.what, Box::new(|query| url::answer(query, args))),
        Probe::Feed(args) => (&args.what, Box::new(feed::answer)),
        Probe::Sitemap(args) => (&args.what, Box::new(sitemap::answer)),
        Probe::Links(args) => (&args.what, Box::new(links::answer)),
        Probe::Render(args) => (&args.what, Box::new(render::answer)),
        Probe::Address(args) => (&args.what, Box::new(|query| address::answer(query, args))),
        Probe::Signature(args) => (&args.what, Box::new(|query| signature::answer(query, args))),
    };
    let Some(what) = what else { return answer_lines(&answer) };
    let text = match &probe {
        Probe::Robots(args) => robots::describe(what, &args.fetch).await?,
        Probe::Url(args) => url::describe(what, args)?,
        Probe::Feed(args) => feed::describe(what, &args.fetch).await?,
        Probe::Sitemap(args) => sitemap::describe(what, &args.fetch).await?,
        Probe::Links(args) => links::describe(what, &args.fetch).await?,
        Probe::Render(args) => return render::run(what, args).await,
        Probe::Address(args) => address::describe(what, args).await?,
        Probe::Signature(args) => signature::describe(what, args)?,
    };
    output::print_text(&text).map_err(Failure::from_output)
}

/// Writes one answer for each line, in order; no query ends the loop.
fn answer_lines(answer: &AnswerFn<'_>) -> Result<(), Failure> {
    let mut input = BufReader::new(io::stdin().lock());
    let mut output = io::BufWriter::new(io::stdout().lock());
    let mut line = Vec::new();
    loop {
        line.clear();
        let mut start = (&mut input).take(LINE_BYTES_MAX + 1);
        if start.read_until(b'\n', &mut line).context("cannot read standard input")? == 0 {
            return output.flush().map_err(Failure::from_output);
        }
        let answer = if line.len() as u64 > LINE_BYTES_MAX && line.last() != Some(&b'\n') {
            input.skip_until(b'\n').context("cannot read standard input")?;
            Err(format!("the line is longer than {LINE_BYTES_MAX} bytes"))
        } else {
            answer_line(&mut line, answer)
        };
        let answer = answer.unwrap_or_else(|error| json!({ "error": error }));
        writeln!(output, "{answer}").map_err(Failure::from_output)?;
        // An interactive script waits for each answer.
        if !input.buffer().contains(&b'\n') {
            output.flush().map_err(Failure::from_output)?;
        }
    }
}

fn answer_line(line: &mut [u8], answer: &AnswerFn<'_>) -> Result<Value, String> {
    surrogates::replace_lone(line);
    match serde_json::from_slice(line) {
        Ok(Value::Object(query)) => answer(&query),
        Ok(_) => Err("expected a JSON object".to_owned()),
        Err(error) => Err(format!("not JSON: {error}")),
    }
}

fn required_text<'a>(query: &'a JsonQuery, name: &str) -> Result<&'a str, String> {
    optional_text(query, name)?.ok_or_else(|| format!("`{name}` is missing"))
}

fn optional_text<'a>(query: &'a JsonQuery, name: &str) -> Result<Option<&'a str>, String> {
    match query.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(format!("`{name}` is not a string")),
    }
}

/// Bytes in Base64, with or without padding.
fn bytes(query: &JsonQuery, name: &str) -> Result<Vec<u8>, String> {
    let digits = required_text(query, name)?.trim_end_matches('=');
    let bytes = BASE64_NOPAD.decode(digits.as_bytes());
    bytes.map_err(|error| format!("`{name}` is not Base64: {error}"))
}

/// The page in `body_b64`, with its `headers`, and `base`, its URL.
fn page(query: &JsonQuery, options: PageOptions) -> Result<PageContent, String> {
    let (body, headers) = (bytes(query, "body_b64")?, headers(query)?);
    let url = CanonicalUrl::parse(required_text(query, "base")?)
        .map_err(|error| format!("`base`: {error}"))?;
    let headers = headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
    let mut reader = PageReader::new(&url, headers, &Arc::new(options));
    reader.feed(&body);
    Ok(reader.finish(&url))
}

/// The first header with this name.
fn header<'a>(headers: &'a [(String, String)], name: &str) -> Option<&'a str> {
    headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
}

/// A text of a site, safe for a terminal.
fn shown(text: &str) -> String {
    printable(text, SHOWN_CHARS_MAX)
}

/// Adds a line with a name in a column of this width.
fn write_row(text: &mut String, width: usize, name: &str, value: &str) {
    writeln!(text, "{name:width$} {}", shown(value)).expect("a String takes everything");
}

/// Headers: an object of names and values (a string or a list of strings), or a list of pairs.
fn headers(query: &JsonQuery) -> Result<Vec<(String, String)>, String> {
    let wrong = || "`headers` must be an object of strings or a list of pairs".to_owned();
    let string = |value: &Value| value.as_str().map(str::to_owned).ok_or_else(wrong);
    let mut headers = Vec::new();
    match query.get("headers") {
        None | Some(Value::Null) => {}
        Some(Value::Object(members)) => {
            for (name, value) in members {
                match value {
                    Value::Array(values) => {
                        for value in values {
                            headers.push((name.clone(), string(value)?));
                        }
                    }
                    value => headers.push((name.clone(), string(value)?)),
                }
            }
        }
        Some(Value::Array(pairs)) => {
            for pair in pairs {
                match pair.as_array().map(Vec::as_slice) {
                    Some([name, value]) => headers.push((string(name)?, string(value)?)),
                    _ => return Err(wrong()),
                }
            }
        }
        Some(_) => return Err(wrong()),
    }
    Ok(headers)
}
