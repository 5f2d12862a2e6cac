//! File descriptors: every connection is one, and shells give 1,024 to a program that does not ask.

/// Takes as many as the system allows this process. The usual limit is low for the sake of programs
/// that call `select`, which knows no higher descriptors; nothing here does.
pub(crate) fn take_all() {
    #[cfg(unix)]
    {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        let all = Rlimit { current: maximum, maximum };
        if current != maximum
            && let Err(error) = setrlimit(Resource::Nofile, all)
        {
            tracing::warn!(%error, ?current, "cannot raise the limit of open files");
        }
    }
}
