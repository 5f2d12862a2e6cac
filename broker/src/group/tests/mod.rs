//! The machine's promises: one by one with the smallest input, and together under a simulated
//! clock, where members stall, vanish, answer late and twice.

mod bench;
mod corners;
mod explain;
mod jobs;
mod operate;
mod parking;
mod repairs;
mod rules;
mod schedules;
mod simulation;
mod site;
mod times_of_day;
mod trust;
mod world;
