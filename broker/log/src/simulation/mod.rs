//! What simulations need: a disk that fails as its seed decides, and the seeds to run. For the
//! feature `simulation` and for tests only.

mod seeds;
mod simulated_disk;

pub use self::seeds::seeds;
pub use self::simulated_disk::{DiskFaults, SimulatedDisk};
