//! End to end: the real binary on free ports, driven by netcat, telnet, curl, nginx, Chromium, wget,
//! sqlite3 and raw sockets.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "tests panic to fail, and drive real processes on real clocks"
)]

mod access_table;
mod ascii_hosts;
mod audit;
mod bench;
mod callbacks;
mod charsets;
mod citations;
mod clock;
mod commands;
mod conditional;
mod config;
mod crawl;
mod crowds;
mod damaged;
mod descriptors;
mod disk_full;
mod docs;
mod done;
mod durable;
mod examples;
mod export;
mod faults;
mod feeds;
mod files;
mod files_faults;
mod flips;
mod groups;
mod hardened;
mod hooks;
mod hostile;
mod hostile_lines;
mod html_topics;
mod http;
mod http_browser;
mod http_disk;
mod http_openapi;
mod hub;
mod hub_faults;
mod hub_peer;
mod injection;
mod internet;
mod kept;
mod kill;
mod kill_pause;
mod limits;
mod links;
mod manage;
mod microblog;
mod newcomer;
mod newest;
mod notified;
mod notifier;
mod operate;
mod places;
mod poison;
mod polite;
mod probe_urls;
mod proxies;
mod pubsub;
mod python_docs;
mod readers;
mod reload;
mod repaired;
mod restart;
mod restart_large;
mod robots;
mod scope;
mod sessions;
mod share;
mod signals;
mod sinks;
mod strangers;
mod support;
mod systemd;
mod tls;
mod tls_client;
mod tokens;
mod topics;
mod trace;
mod traps;
mod trusted;
mod underway;
mod unix;
mod up;
mod usage;
mod watch_feed;
mod websub;
mod worker;
mod zmq;
mod zmq_bridge;
mod zmq_faults;
