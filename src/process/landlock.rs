//! Landlock: the kernel denies the process everything that it has declared not to need.

use std::{env, path::PathBuf, str::FromStr};

use ::landlock::{
    ABI, Access, AccessFs, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetStatus, path_beneath_rules,
};

use crate::failure::Failure;

/// Paths that every program reads: libraries, names, certificates, time zones, and kernel
/// information.
const READ: [&str; 14] = [
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
const LOADERS: [&str; 4] = ["/lib", "/lib64", "/usr/lib", "/usr/lib64"];

/// Whether the process is confined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Confine {
    Auto,
    Off,
    Require,
}

impl FromStr for Confine {
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
pub(super) struct Allowed {
    /// Everything below these directories, except execution.
    pub(super) written: Vec<PathBuf>,
    pub(super) read: Vec<PathBuf>,
    /// This program may be executed again.
    pub(super) runs_self: bool,
}

/// Lets the kernel deny everything else to this thread and the threads that it starts.
pub(super) fn confine(when: Confine, allowed: &Allowed) -> Result<(), Failure> {
    let status = restrict(allowed).map_err(|error| {
        Failure::failed(format!("cannot confine the process with Landlock: {error}"))
    })?;
    match (status, when) {
        (RulesetStatus::NotEnforced, Confine::Require) => Err(Failure::failed(
            "--landlock require: this kernel has no Landlock (Linux 5.13 or newer with landlock in lsm=); use --landlock \
             auto to start without it",
        )),
        (status, _) => {
            tracing::debug!(?status, "Landlock");
            Ok(())
        }
    }
}

fn restrict(allowed: &Allowed) -> Result<RulesetStatus, ::landlock::RulesetError> {
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
        .add_rules(path_beneath_rules(READ, read))?
        .add_rules(path_beneath_rules(certificates.map(PathBuf::from), read))?
        .add_rules(path_beneath_rules(&allowed.read, read))?
        .add_rules(path_beneath_rules(["/dev/null"], read | AccessFs::WriteFile))?
        .add_rules(path_beneath_rules(&allowed.written, all & !AccessFs::Execute))?;
    if allowed.runs_self {
        let own = env::current_exe().ok();
        rules = rules
            .add_rules(path_beneath_rules(LOADERS, AccessFs::Execute))?
            .add_rules(path_beneath_rules(own, read | AccessFs::Execute))?;
    }
    Ok(rules.restrict_self()?.ruleset)
}
