//! Measurements in addition to those of `tidings bench` (`tidings-load`). They use its generator of
//! load.
//!
//! | module | measures |
//! |---|---|
//! | [`fan_in`] | deliveries per second from many publishers |
//! | [`latency`] | publish to delivery, at a fixed rate |
//! | [`idle`] | memory of a subscriber that receives nothing, and one event to all of them |
//! | [`replay`] | stored events to one subscriber |
//! | [`frontier`] | links per second that become waiting URLs, their memory, and a restart with them |
//! | [`announce`] | announcement to request, as a crawled host sees it |
//! | [`job_done`] | last page of a crawl to its `job-done` event |
//! | [`connect`] | connect, subscribe, close |
//! | [`stalled`] | the rate of other subscribers while one stops reading |
//! | [`sse`] | the same, with subscribers by Server-Sent Events |
//!
//! Crawlers are measured from the other side: [`origin`] is the web that they crawl, and
//! [`program`] runs one to its end and measures its cost.

pub mod announce;
pub mod connect;
pub mod control_group;
pub mod fan_in;
pub mod frontier;
mod histogram;
pub mod idle;
pub mod job_done;
pub mod latency;
pub mod origin;
pub mod program;
pub mod replay;
pub mod sse;
pub mod stalled;
