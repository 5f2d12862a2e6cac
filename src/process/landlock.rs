//! Landlock: the kernel denies the process all files except those that it has declared to need.

use std::env;
use std::path::PathBuf;
use std::str::FromStr;

use ::landlock::{
    ABI, Access, AccessFs, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetStatus, path_beneath_rules,
};

use crate::terminal::failure::Failure;

/// Paths that every program reads: libraries, names, certificates, time zones, and kernel
/// information.
const READABLE: [&str; 14] = [
    "/bin",
    "/dev",
    "/etc",
    "/lib",
    "/lib32",
    "/lib64",
    "/nix/store",
    "/opt",
    "/proc",
    "/run",
    "/sys",
    "/usr",
    "/var/lib/ca-certificates",
    "/var/run",
];

/// The directories of the program loader, which the kernel starts with the program.
const LOADER_DIRS: [&str; 4] = ["/lib", "/lib64", "/usr/lib", "/usr/lib64"];

/// Whether the process is confined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LandlockMode {
    Auto,
    Off,
    Require,
}

impl FromStr for LandlockMode {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        match word {
            "auto" => Ok(Self::Auto),
            "off" => Ok(Self::Off),
            "require" => Ok(Self::Require),
            _ => Err("expected auto, off or require".to_owned()),
        }
    }
}

/// The allowed paths, in addition to those that every program reads.
pub(super) struct AllowedPaths {
    /// Everything below these directories, except execution.
    pub(super) writable: Vec<PathBuf>,
    pub(super) readable: Vec<PathBuf>,
    /// This program may be executed again.
    pub(super) runs_self: bool,
}

/// Lets the kernel deny everything else to this thread and the threads that it starts.
pub(super) fn confine(when: LandlockMode, allowed: &AllowedPaths) -> Result<(), Failure> {
    let status = restrict(allowed).map_err(|error| {
        Failure::failed(format!("cannot confine the process with Landlock: {error}"))
    })?;
    match (status, when) {
        (RulesetStatus::NotEnforced, LandlockMode::Require) => Err(Failure::failed(
            "--landlock require: this kernel has no Landlock (Linux 5.13 or newer with landlock in lsm=); use --landlock \
             auto to start without it",
        )),
        (status, _) => {
            tracing::debug!(?status, "Landlock");
            Ok(())
        }
    }
}

fn restrict(allowed: &AllowedPaths) -> Result<RulesetStatus, ::landlock::RulesetError> {
    // Restrictions of later kernels are not needed; those that an earlier kernel lacks are left
    // out.
    let all = AccessFs::from_all(ABI::V5);
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    // Certificate paths from the usual variables.
    let certificates = ["SSL_CERT_FILE", "SSL_CERT_DIR"].into_iter().filter_map(env::var_os);
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(all)?
        .create()?
        .add_rules(path_beneath_rules(READABLE, read))?
        .add_rules(path_beneath_rules(certificates.map(PathBuf::from), read))?
        .add_rules(path_beneath_rules(&allowed.readable, read))?
        .add_rules(path_beneath_rules(["/dev/null"], read | AccessFs::WriteFile))?
        .add_rules(path_beneath_rules(&allowed.writable, all & !AccessFs::Execute))?;
    if allowed.runs_self {
        let own = env::current_exe().ok();
        rules = rules
            .add_rules(path_beneath_rules(LOADER_DIRS, AccessFs::Execute))?
            .add_rules(path_beneath_rules(own, read | AccessFs::Execute))?;
    }
    Ok(rules.restrict_self()?.ruleset)
}
