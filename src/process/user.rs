//! Dropping privileges to another user.

use std::ffi::CString;
use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, fchown};
use std::path::Path;

use anyhow::{Context, ensure};
use nix::unistd::{
    Gid, Group, Uid, User, geteuid, initgroups, setgid, setresgid, setresuid, setuid,
};
use rustix::fs::{Mode, OFlags};

use crate::terminal::failure::Failure;

/// A user of this machine, and a group.
pub(super) struct ProcessUser {
    name: CString,
    uid: Uid,
    gid: Gid,
}

/// The user with this name or number, and the group if it differs from the user's primary group.
pub(super) fn find_user(user: &str, group: Option<&str>) -> Result<ProcessUser, Failure> {
    let wrong =
        |what: &str, name: &str| Failure::Usage(format!("no {what} {name:?} on this machine"));
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
    let name = CString::new(user.name)
        .map_err(|_| Failure::failed("the name of the user contains a NUL"))?;
    Ok(ProcessUser { name, uid: user.uid, gid })
}

pub(super) fn is_root() -> bool {
    geteuid().is_root()
}

impl ProcessUser {
    /// Whether it differs from the present user or group.
    pub(super) fn differs_from_current(&self) -> bool {
        geteuid() != self.uid || nix::unistd::getegid() != self.gid
    }

    /// Changes to that user permanently, with all threads. A data directory that is created now
    /// belongs to that user.
    pub(super) fn become_user(&self, data: &Path) -> Result<(), Failure> {
        let name = self.name.to_string_lossy();
        if !is_root() {
            let text = format!("--user {name}: only root can change the user");
            return Err(Failure::Usage(text));
        }
        self.make_data_directory(data)?;
        // The last of the three gives up the privilege for all three.
        initgroups(&self.name, self.gid)
            .and_then(|()| setresgid(self.gid, self.gid, self.gid))
            .and_then(|()| setresuid(self.uid, self.uid, self.uid))
            .with_context(|| format!("cannot change to the user {name}"))?;
        let is_back = !self.uid.is_root() && setuid(Uid::from_raw(0)).is_ok()
            || self.gid.as_raw() != 0 && !self.uid.is_root() && setgid(Gid::from_raw(0)).is_ok();
        if is_back {
            let text = format!(
                "the process could regain root privileges after the change to the user {name}"
            );
            return Err(Failure::failed(text));
        }
        Ok(())
    }

    fn make_data_directory(&self, data: &Path) -> Result<(), Failure> {
        if data.exists() {
            return Ok(());
        }
        let shown = data.display();
        let make = || -> anyhow::Result<()> {
            // The parent directories stay accessible to others, so that the user can reach it.
            data.parent().map_or(Ok(()), fs::create_dir_all)?;
            DirBuilder::new().mode(0o700).create(data)?;
            self.change_owner(data)
        };
        make().with_context(|| format!("cannot create the data directory {shown}"))?;
        Ok(())
    }

    /// Changes the owner of the new directory. Another user with write access to the parent may
    /// have replaced it: links, and directories with content, must not change their owner.
    fn change_owner(&self, made: &Path) -> anyhow::Result<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = File::from(rustix::fs::open(made, flags, Mode::empty())?);
        let found = directory.metadata()?;
        let is_empty = rustix::fs::Dir::read_from(&directory)?.all(|entry| {
            entry.is_ok_and(|entry| matches!(entry.file_name().to_bytes(), b"." | b".."))
        });
        ensure!(
            found.uid() == geteuid().as_raw() && found.mode() & 0o777 == 0o700 && is_empty,
            "another process has replaced the new directory"
        );
        fchown(&directory, Some(self.uid.as_raw()), Some(self.gid.as_raw()))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use nix::unistd::{getegid, geteuid};

    use super::*;

    #[test]
    fn only_a_new_directory_changes_its_owner() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let own = ProcessUser { name: c"me".into(), uid: geteuid(), gid: getegid() };
        own.make_data_directory(&at("a/b/data")).unwrap();
        assert_eq!(fs::metadata(at("a/b/data")).unwrap().mode() & 0o777, 0o700);
        assert_ne!(fs::metadata(at("a/b")).unwrap().mode() & 0o777, 0o700, "other users can pass");
        own.change_owner(&at("a/b/data")).unwrap();
        symlink("a/b/data", at("link")).unwrap();
        assert!(own.change_owner(&at("link")).is_err(), "it is a link");
        fs::set_permissions(at("a/b/data"), fs::Permissions::from_mode(0o755)).unwrap();
        assert!(own.change_owner(&at("a/b/data")).is_err(), "its mode has changed");
        fs::set_permissions(at("a/b/data"), fs::Permissions::from_mode(0o700)).unwrap();
        fs::write(at("a/b/data/x"), "").unwrap();
        assert!(own.change_owner(&at("a/b/data")).is_err(), "it has content");
        fs::write(at("file"), "").unwrap();
        assert!(own.change_owner(&at("file")).is_err());
    }
}
