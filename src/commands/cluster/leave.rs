//! `tidings cluster leave`

use std::fs;

use anyhow::Context;
use tidings_broker::DataDir;

use crate::flags::DataFlag;
use crate::process::stack::{COPY_FILE, start_failure};
use crate::terminal::failure::Failure;
use crate::terminal::output::Console;

/// Makes the broker of the directory, which must not run, a broker of its own.
pub(super) fn run(data: &DataFlag) -> Result<(), Failure> {
    let data = &data.data;
    let locked = DataDir::open_read_only(data).map_err(|error| start_failure(error, "--data"))?;
    let file = data.join(COPY_FILE);
    let shown = data.display();
    if !file.exists() {
        return Err(Failure::failed(format!("{shown} is not of a broker of a community")));
    }
    fs::remove_file(&file).with_context(|| format!("cannot remove {}", file.display()))?;
    drop(locked);
    Console::new()
        .line(&format!("{shown} is of a broker of its own: tidings broker --data {shown}"))
}
