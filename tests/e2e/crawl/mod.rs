//! The crawler and its outputs.

mod ascii_hosts;
mod charsets;
mod conditional;
mod export;
mod feeds;
mod hostile_servers;
mod kept_connections;
mod notified;
mod outputs;
mod polite;
mod probe_urls;
mod proxies;
mod python_docs;
mod robots;
mod scope;
mod sessions;
mod sinks;
mod site;
mod traps;
mod watch_feed;
