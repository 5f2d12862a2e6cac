//! Configuration, reload, service manager, benchmarks and mistakes of operators.

mod bench;
mod completions;
mod config;
mod confirmations;
mod contexts;
mod first_use;
mod manual_pages;
mod metrics;
mod never_file;
mod operator;
mod other_servers;
mod reload;
mod status;
mod systemd;
mod top;
mod up;
mod usage;
