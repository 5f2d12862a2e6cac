//! The crawler and its outputs.

mod ascii_hosts;
mod bodies;
mod charsets;
mod conditional_requests;
mod export;
mod feeds;
mod hostile_servers;
mod keep_alive;
mod outputs;
mod politeness;
mod probe_render;
mod probe_urls;
mod proxies;
mod published_feeds;
mod python_docs;
mod rendered;
mod rendering;
mod rendering_auto;
mod robots;
mod scope;
mod sessions;
mod signed_requests;
mod sinks;
mod site;
mod traps;
mod watch_feed;
