//! Configuration, reload, service manager, benchmarks and mistakes of operators.

mod bench;
mod config;
mod confirmations;
mod first_use;
mod operator;
mod reload;
mod status;
mod systemd;
mod up;
mod usage;
