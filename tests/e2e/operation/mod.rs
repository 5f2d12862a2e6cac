//! Configuration, reload, service manager, benchmarks and mistakes of operators.

mod bench;
mod config;
mod first_use;
mod never_file;
mod operator;
mod reload;
mod systemd;
mod up;
mod usage;
