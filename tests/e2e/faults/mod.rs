//! Kills, failing disks, damaged files and changes of the clock.

mod clock;
pub(crate) mod damaged;
mod disk_full;
mod disks;
mod durable;
mod flips;
mod kill;
mod kill_pause;
mod restart;
mod restart_large;
mod trace;
