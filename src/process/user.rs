//! Becoming somebody who has fewer rights.

use std::{ffi::CString, fs::DirBuilder, os::unix::fs::DirBuilderExt, path::Path};

use anyhow::Context;
use nix::unistd::{
    Gid, Group, Uid, User, geteuid, initgroups, setgid, setresgid, setresuid, setuid,
};

use crate::failure::Failure;

/// Somebody whom this machine knows.
pub(super) struct Somebody {
    name: CString,
    uid: Uid,
    gid: Gid,
}

/// The user of this name or number, and the group, if it is to be another one than the user's.
pub(super) fn find(user: &str, group: Option<&str>) -> Result<Somebody, Failure> {
    let wrong = |what: &str, name: &str| Failure::Usage(format!("there is no {what} {name:?}"));
    let found = match user.parse() {
        Ok(uid) => User::from_uid(Uid::from_raw(uid)),
        Err(_) => User::from_name(user),
    };
    let user = found.ok().flatten().ok_or_else(|| wrong("user", user))?;
    let gid = match group {
        None => user.gid,
        Some(name) => {
            let found = match name.parse() {
                Ok(gid) => Group::from_gid(Gid::from_raw(gid)),
                Err(_) => Group::from_name(name),
            };
            found.ok().flatten().ok_or_else(|| wrong("group", name))?.gid
        }
    };
    let name = CString::new(user.name).map_err(|_| Failure::failed("a user's name holds a NUL"))?;
    Ok(Somebody { name, uid: user.uid, gid })
}

pub(super) fn is_root() -> bool {
    geteuid().is_root()
}

impl Somebody {
    /// Whether it is not us.
    pub(super) fn is_other(&self) -> bool {
        geteuid() != self.uid || nix::unistd::getegid() != self.gid
    }

    /// Becomes that user for good, with all threads; a data directory that is made now is that user's.
    pub(super) fn take_over(&self, data: &Path) -> Result<(), Failure> {
        let name = self.name.to_string_lossy();
        if !is_root() {
            let text = format!("only root can become {name} (--user)");
            return Err(Failure::Usage(text));
        }
        self.make(data)?;
        // The last of the three takes the right to do any of them.
        initgroups(&self.name, self.gid)
            .and_then(|()| setresgid(self.gid, self.gid, self.gid))
            .and_then(|()| setresuid(self.uid, self.uid, self.uid))
            .with_context(|| format!("cannot become {name}"))?;
        let is_back = !self.uid.is_root() && setuid(Uid::from_raw(0)).is_ok()
            || self.gid.as_raw() != 0 && !self.uid.is_root() && setgid(Gid::from_raw(0)).is_ok();
        if is_back {
            let text = format!("the rights of root can be had back after becoming {name}");
            return Err(Failure::failed(text));
        }
        Ok(())
    }

    fn make(&self, data: &Path) -> Result<(), Failure> {
        if data.exists() {
            return Ok(());
        }
        let shown = data.display();
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder.create(data).with_context(|| format!("cannot make the data directory {shown}"))?;
        let (uid, gid) = (self.uid.as_raw(), self.gid.as_raw());
        std::os::unix::fs::chown(data, Some(uid), Some(gid))
            .with_context(|| format!("cannot give the data directory {shown} to its user"))?;
        Ok(())
    }
}
