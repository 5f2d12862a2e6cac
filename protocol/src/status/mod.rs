//! What the broker says about its topics, groups, jobs, tasks, keys and schedules.
//!
//! A status is one struct with one list of its fields. This list gives the line on the wire
//! (`<name> key=value ..`, by `Display`) and its parser. It also gives the JSON object of HTTP (by
//! [`serde::Serialize`]), and [`Field`]s, with which a test compares the `OpenAPI` description. An
//! [`Answer`] has a status in each line.
//!
//! A peer may have another version. The parser ignores keys that it does not know, and a key that
//! is missing or has an unreadable value leaves its field at the default.

mod answer;
#[macro_use]
pub(crate) mod fields;
mod group;
mod job;
mod queue;
mod topic;
mod value;

pub use self::answer::{Answer, Status};
pub use self::fields::{Field, JsonType};
pub use self::group::{
    BrowserFields, ChangedEntriesStatus, DamagedGroupStatus, DrainStatus, GroupStatus,
    ListedMember, ListedRule, MemberFields, MemberState, MemberStatus, PageMetricsStatus,
    RuleFields, RuleStatus,
};
pub use self::job::{
    JobDryRun, JobEnd, JobEndReason, JobListEnd, JobResult, JobState, JobStatus, PageStatus,
    PassCounts, SeedStatus,
};
pub use self::queue::{
    AckStatus, KeyStatus, ListEnd, ScheduleStatus, TaskFields, TaskState, TaskStatus, TouchStatus,
    WaitReason,
};
pub use self::topic::{CursorStatus, TopicState, TopicStatus};
pub use self::value::{ByteSize, DurationMs, Rate};

#[cfg(test)]
mod tests;
