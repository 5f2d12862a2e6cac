//! Tests of the group's state machine: single rules with the smallest input, and simulations of
//! whole runs with workers that stall, disappear, or answer late and twice.

pub(crate) mod bench;
mod circuit;
mod delays;
mod drain;
mod explain;
mod filter;
mod finished;
mod interactions;
mod job_changes;
mod jobs;
mod key_rules;
mod keyless;
mod lists;
mod never_list;
mod operate;
mod page_parts;
mod page_ready;
mod render;
mod repairs;
mod rules;
mod schedules;
mod simulation;
mod site;
mod texts;
mod times_of_day;
mod trust;
mod waiting;
mod world;
