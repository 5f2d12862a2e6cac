//! Renders pages in headless Chromium. The browser has no network; the caller makes its requests.
//!
//! 1. `browsers`: the task that owns the browsers and carries out what the pool decides
//! 2. [`visit`]: renders one page, and passes its requests to the caller
//! 3. [`pool`]: decides which browser takes which page, and when a browser is replaced; pure
//! 4. `browser`: one browser that runs
//! 5. `cdp`: a connection to one browser: calls with deadlines, and the events of each page
//! 6. [`process`]: starts browsers so that they reach no network and do not outlive this process
//! 7. [`program`]: finds the browser's program
//!
//! Each module imports only those behind it in this list.

mod browser;
mod browsers;
mod cdp;
pub mod pool;
pub mod process;
pub mod program;
pub mod visit;

pub use self::browsers::{Browsers, BrowsersConfig, BrowsersTask, Status};
#[cfg(any(test, feature = "fuzzing"))]
pub use self::cdp::fuzzing;
