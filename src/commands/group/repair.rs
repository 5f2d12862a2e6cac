//! `tidings group repair`: restores a group with a damaged log.

use std::path::PathBuf;

use clap::Args;
use tidings_broker::RepairError;
use tidings_protocol::GroupName;

use crate::flags::confirmation::YesFlag;
use crate::terminal::failure::Failure;
use crate::terminal::output::{Console, format_count, plural};

const EXAMPLES: &str = "\
Examples:
  tidings verify --data tidings-data                  which group is damaged, and where
  tidings group repair thumbs --data tidings-data     restore it up to the damage
  tidings group repair thumbs --data tidings-data --set-aside --yes

The group is restored to its state before the first unreadable record. Everything later is lost:
tasks answered after that are released again, jobs opened after that are gone, and events read after
that are read again if the topic still has them. With --set-aside nothing is restored: the default
group begins empty, and any other group must be created again with `tidings group create`. A
terminal asks first.

The damaged log is moved to set-aside/ in the data directory. Nothing is deleted.

Exit codes: 0 success; 1 failure, and the group is unchanged; 2 wrong usage.";

/// The flags of `tidings group repair`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RepairArgs {
    /// The group
    group: GroupName,

    /// The data directory; no broker may use it
    #[arg(long, value_name = "DIR")]
    data: PathBuf,

    /// Move the damaged log away and restore nothing
    #[arg(long)]
    set_aside: bool,

    #[command(flatten)]
    yes: YesFlag,
}

/// Repairs the group and prints what was lost.
pub(super) async fn run(args: &RepairArgs) -> Result<(), Failure> {
    let group = &args.group;
    if args.set_aside {
        let question = format!("set the log of group {group} aside, and restore nothing of it?");
        args.yes.confirm(async { Ok(question) }).await?;
    }
    let repaired = tidings_broker::repair(&args.data, group, args.set_aside).map_err(|error| {
        Failure::failed(match error {
            RepairError::Start(error) => format!("{error}; stop the broker first"),
            error => error.to_string(),
        })
    })?;
    let mut console = Console::new();
    match repaired.kept {
        Some(kept) => {
            console.line(&format!("{group}: restored from {}", plural(kept, "record")))?;
            if repaired.was_cut_short {
                console.line("  an earlier repair was interrupted; it is complete now")?;
            }
            let lost = repaired.unreadable;
            let dropped: u64 = repaired.dropped.values().sum();
            if !repaired.was_cut_short {
                console.line(&format!("  {} cannot be read", plural(lost, "record")))?;
                console
                    .line(&format!("  {} after that were dropped", plural(dropped, "record")))?;
            }
            for (kind, number) in &repaired.dropped {
                console.line(&format!("    {kind}: {}", format_count(*number)))?;
            }
        }
        None => console.line(&format!("{group}: nothing was restored"))?,
    }
    console.line(&format!("  the damaged log is now in {}", repaired.aside.display()))
}
