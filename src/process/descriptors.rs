//! The limit of file descriptors: each connection uses one, and shells set a limit of 1,024.

/// Raises the limit of this process as far as the system allows. The usual limit is low because
/// `select` cannot use higher descriptors; nothing here calls it.
pub(crate) fn raise_limit() {
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
