//! The flags of the browsers that render pages.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use tidings_browser::pool::PoolConfig;
use tidings_browser::process::{Isolation, LaunchConfig};
use tidings_browser::visit::{Load, PageLimits};
use tidings_browser::{BrowsersConfig, program};
use tidings_protocol::RenderRule;
use tidings_subscriber::RenderConfig;

use crate::flags::{parse_bytes, parse_duration};
use crate::process::privileges;
use crate::terminal::failure::Failure;

/// The value of `--browser` for a browser that is looked for.
const FOUND: &str = "auto";

/// What one page more needs, by which the default of `--render-slots` is chosen.
const SLOT_BYTES: u64 = 400 << 20;

/// A kind of parts that are not loaded by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OptionalPart {
    Images,
    Fonts,
    Media,
}

/// How browsers are kept from the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum IsolationMode {
    /// In namespaces if the kernel allows it, and by its own flags
    Auto,
    /// In namespaces, or no browser starts
    Require,
    /// By its own flags only
    Off,
}

/// How one page is rendered.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Pages that need a browser")]
pub(crate) struct BrowserPageFlags {
    /// Read a page that still changes after this time as it is
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = parse_duration)]
    render_wait: Duration,

    /// Also load these parts of pages
    #[arg(long, value_name = "PART,..", value_enum, value_delimiter = ',')]
    render_load: Vec<OptionalPart>,

    /// How browsers are kept from the network, which they never use themselves
    #[arg(long, value_name = "MODE", value_enum, default_value_t = IsolationMode::Auto)]
    browser_isolation: IsolationMode,

    /// Run Chromium without its own sandbox: a page that exploits an error of Chromium has the rights
    /// of its user
    #[arg(long)]
    browser_no_sandbox: bool,
}

/// Flags about pages that are rendered in a browser.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Pages that need a browser")]
pub(crate) struct BrowserFlags {
    /// Render pages in Chromium: never, auto (pages that look empty without their scripts), always,
    /// or those that match these patterns [default: never]
    ///
    /// The attribute render= of a URL or of its job overrides this. Patterns are those of
    /// --include, with commas between them.
    #[arg(long, value_name = "RULE|PATTERN,..")]
    pub(crate) render: Option<RenderRule>,

    /// The browser to render with: a path or a name, or auto for the Chromium that is installed
    /// [default with --render: auto]
    ///
    /// Without --render, a page is rendered only if its URL or its job asks for it.
    #[arg(long, value_name = "PROGRAM")]
    browser: Option<PathBuf>,

    /// Render at most this many pages at once [default: 6, or fewer if memory is short]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    render_slots: Option<u8>,

    /// Store an image (PNG) of each rendered page in the data directory
    #[arg(long)]
    screenshot: bool,

    /// Store each rendered page as PDF in the data directory
    #[arg(long)]
    pdf: bool,

    /// Replace a browser after this many pages; up to a fifth more or less, at random
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    browser_pages: u32,

    /// Replace a browser after this time; up to a fifth more or less, at random
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = parse_duration)]
    browser_age: Duration,

    /// Replace a browser when it and its children use this much memory; k, m and g are units
    #[arg(long, value_name = "BYTES", default_value = "1536m", value_parser = parse_bytes)]
    browser_memory: u64,

    #[command(flatten)]
    page: BrowserPageFlags,
}

impl BrowserFlags {
    /// The configuration, if pages may be rendered. Fails if no browser is found.
    pub(crate) fn config(&self, agent: &str) -> Result<Option<RenderConfig>, Failure> {
        if !self.may_render() {
            return match self.flag_without_browser() {
                Some(flag) => Err(Failure::Usage(format!(
                    "{flag}: no page is rendered; add --render auto, always or PATTERN, or \
                     --browser auto for pages whose URL or job asks for it"
                ))),
                None => Ok(None),
            };
        }
        Ok(Some(RenderConfig {
            rule: self.render.clone().unwrap_or_default(),
            launch: self.page.launch(self.browser.as_deref(), agent)?,
            browsers: BrowsersConfig {
                pool: self.pool(available_bytes()),
                page: self.page.limits(),
                ..BrowsersConfig::default()
            },
            load: self.page.load(),
            screenshot: self.screenshot,
            pdf: self.pdf,
        }))
    }

    /// Whether browsers are started when they are needed.
    pub(crate) fn may_render(&self) -> bool {
        self.browser.is_some() || !matches!(&self.render, None | Some(RenderRule::Never))
    }

    /// A flag that has no effect if no page is rendered.
    fn flag_without_browser(&self) -> Option<&'static str> {
        let given = [
            ("--screenshot", self.screenshot),
            ("--pdf", self.pdf),
            ("--render-load", !self.page.render_load.is_empty()),
            ("--render-slots", self.render_slots.is_some()),
        ];
        given.into_iter().find_map(|(flag, is_given)| is_given.then_some(flag))
    }

    /// `available`: the memory that is available, in bytes.
    fn pool(&self, available: Option<u64>) -> PoolConfig {
        let default = PoolConfig::default();
        let fitting = available.and_then(|bytes| usize::try_from(bytes / SLOT_BYTES).ok());
        let slots = fitting.map_or(default.slots, |fitting| fitting.clamp(1, default.slots));
        let slots = self.render_slots.map_or(slots, usize::from);
        PoolConfig {
            slots,
            browsers: default.browsers.min(slots),
            pages_max: self.browser_pages,
            age_max: self.browser_age,
            browser_bytes_max: self.browser_memory,
            total_bytes_max: available.map_or(default.total_bytes_max, |bytes| {
                default.total_bytes_max.min(bytes / 2).max(self.browser_memory)
            }),
            ..default
        }
    }
}

impl BrowserPageFlags {
    /// How a browser is started. `browser` is the value of `--browser`. Fails if it is missing.
    pub(crate) fn launch(
        &self,
        browser: Option<&Path>,
        agent: &str,
    ) -> Result<LaunchConfig, Failure> {
        let program = program::find(browser.filter(|name| *name != FOUND))
            .map_err(|error| Failure::failed(format!("cannot render pages: {error}")))?;
        Ok(LaunchConfig {
            program,
            sandbox_words: vec![privileges::SANDBOX_COMMAND.into()],
            starter: None,
            isolation: match self.browser_isolation {
                IsolationMode::Auto => Isolation::IfPossible,
                IsolationMode::Require => Isolation::Required,
                IsolationMode::Off => Isolation::Off,
            },
            no_sandbox: self.browser_no_sandbox,
            user_agent: agent.to_owned(),
        })
    }

    /// The optional parts that are loaded.
    pub(crate) fn load(&self) -> Load {
        let loads = |part| self.render_load.contains(&part);
        Load {
            images: loads(OptionalPart::Images),
            fonts: loads(OptionalPart::Fonts),
            media: loads(OptionalPart::Media),
        }
    }

    /// The limits of a page.
    pub(crate) fn limits(&self) -> PageLimits {
        let default = PageLimits::default();
        let rest = default.time_max.saturating_sub(default.settle_max);
        PageLimits { settle_max: self.render_wait, time_max: self.render_wait + rest, ..default }
    }
}

/// The memory that can be used without swapping, in bytes.
fn available_bytes() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use clap::{Command, FromArgMatches};

    use super::*;

    fn flags(words: &[&str]) -> Result<BrowserFlags, String> {
        let words = ["tidings"].iter().chain(words);
        BrowserFlags::augment_args(Command::new("tidings"))
            .try_get_matches_from(words)
            .and_then(|matches| BrowserFlags::from_arg_matches(&matches))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn no_page_is_rendered_unless_it_is_asked_for() {
        for words in [&[][..], &["--render=never"]] {
            assert!(flags(words).unwrap().config("bot/1").unwrap().is_none());
        }
        let error = flags(&["--screenshot"]).unwrap().config("bot/1").unwrap_err();
        assert!(matches!(&error, Failure::Usage(text) if text.contains("add --render")));
    }

    #[test]
    fn flags_reach_the_configuration() {
        let words = [
            "--render=/app/*",
            "--browser=sh",
            "--render-slots=3",
            "--render-load=images,fonts",
            "--render-wait=5s",
            "--browser-pages=20",
            "--screenshot",
        ];
        let config = flags(&words).unwrap().config("bot/1").unwrap().unwrap();
        assert_eq!(config.rule, "/app/*".parse().unwrap());
        assert!(config.launch.program.ends_with("sh") && config.launch.user_agent == "bot/1");
        assert_eq!((config.browsers.pool.slots, config.browsers.pool.pages_max), (3, 20));
        assert_eq!(config.load, Load { images: true, fonts: true, media: false });
        let PageLimits { settle_max, time_max, .. } = config.browsers.page;
        assert_eq!((settle_max.as_secs(), time_max.as_secs()), (5, 20));
        assert!(config.screenshot && !config.pdf);
    }

    #[test]
    fn fewer_pages_are_rendered_at_once_if_memory_is_short() {
        let flags = flags(&["--render=always"]).unwrap();
        let slots = |bytes| flags.pool(bytes).slots;
        assert_eq!((slots(None), slots(Some(64 << 30)), slots(Some(900 << 20))), (6, 6, 2));
        assert_eq!((slots(Some(1 << 20)), flags.pool(Some(1 << 20)).browsers), (1, 1));
    }

    #[test]
    fn wrong_flags_are_rejected_with_the_reason() {
        for (word, reason) in [
            ("--render=sometimes", "never, auto, always"),
            ("--render-load=ads", "images"),
            ("--render-slots=0", "1..=64"),
            ("--browser-isolation=none", "require"),
        ] {
            let error = flags(&[word]).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
        let error = flags(&["--browser=/nowhere/chromium"]).unwrap().config("bot/1").unwrap_err();
        assert!(error.text().unwrap().contains("apt install chromium-headless-shell"));
    }
}
