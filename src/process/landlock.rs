//! Landlock: the kernel refuses what a process has said that it will never do.

use std::{env, path::PathBuf, str::FromStr};

use ::landlock::{
    ABI, Access, AccessFs, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetStatus, path_beneath_rules,
};

use crate::failure::Failure;

/// Where systems keep what every program reads: libraries, names, certificates, time zones, and what the kernel says.
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

/// Where the loader of this program is, which the kernel starts with it.
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
            _ => Err("write auto, off or require".to_owned()),
        }
    }
}

/// What may be done from here on, besides reading what every program reads.
pub(super) struct Allowed {
    /// Below these directories everything, but to run it.
    pub(super) written: Vec<PathBuf>,
    pub(super) read: Vec<PathBuf>,
    /// This program may be run once more.
    pub(super) runs_self: bool,
}

/// Has the kernel refuse everything else to this thread and to those that it starts.
pub(super) fn confine(when: Confine, allowed: &Allowed) -> Result<(), Failure> {
    let status = restrict(allowed)
        .map_err(|error| Failure::failed(format!("cannot be confined by Landlock: {error}")))?;
    match (status, when) {
        (RulesetStatus::NotEnforced, Confine::Require) => Err(Failure::failed(
            "this kernel has no Landlock (Linux 5.13 or newer, with landlock among its lsm=), which --landlock require \
             asks for",
        )),
        (status, _) => {
            tracing::debug!(?status, "Landlock");
            Ok(())
        }
    }
}

fn restrict(allowed: &Allowed) -> Result<RulesetStatus, ::landlock::RulesetError> {
    // What later kernels can refuse besides is of no use here; what earlier ones cannot is left out.
    let all = AccessFs::from_all(ABI::V5);
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    // Places of certificates that are named for all programs.
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
