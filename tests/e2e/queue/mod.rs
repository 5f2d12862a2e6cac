//! Groups, jobs, tasks and dead letters.

mod changed_jobs;
mod circuit;
mod drain;
mod failed_pages;
mod group_commands;
mod group_exec;
pub(crate) mod groups;
mod host_commands;
mod job_completion;
mod lists;
mod poison_task;
mod python_worker;
mod rendered_tasks;
mod retirement;
mod retried_pages;
mod rust_worker;
mod waiting;
