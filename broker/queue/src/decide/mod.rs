//! Decisions: what the group does with an input. Each is applied and recorded at once
//! (`Group::commit`), which is the only way to change the state from here.

mod admit;
mod completion;
mod expiry;
mod job_actions;
mod lease;
mod manage;
pub(crate) mod membership;
mod operations;
mod page_event;
mod parsed_event;
pub(crate) mod prefetch;
pub(crate) mod rules;
mod schedule;
mod task_release;
mod task_reply;
pub(crate) mod text_reads;
mod wall_clock;
