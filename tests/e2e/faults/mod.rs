//! Kills, failing disks, damaged files and changes of the clock.

mod bit_flips;
mod blocks;
mod clock;
pub(crate) mod damage;
mod disk_full;
mod durability;
mod failing_disks;
mod kill_pause;
mod network_loss;
mod page_outcomes;
mod restart;
mod restart_large;
mod syscall_trace;
