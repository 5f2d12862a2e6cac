//! Configuration, reload, service manager, benchmarks and mistakes of operators.

mod bench;
mod config;
mod newcomer;
mod operate;
mod reload;
mod systemd;
mod up;
mod usage;
