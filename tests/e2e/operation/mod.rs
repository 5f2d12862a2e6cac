//! Configuration, reload, service manager, benchmarks and mistakes of operators.

mod bench;
mod config;
mod first_use;
mod metrics;
mod operator;
mod reload;
mod systemd;
mod up;
mod usage;
