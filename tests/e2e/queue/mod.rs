//! Groups, jobs, tasks and dead letters.

mod done;
mod groups;
mod manage;
mod poison;
mod python_worker;
mod repaired;
mod share;
