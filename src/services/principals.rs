//! `access.toml` in the data directory: the principals and their permissions. Without this file
//! login is not required.

#![expect(clippy::disallowed_methods, reason = "polls the file for changes")]

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tidings_broker::Broker;
use tidings_broker::access::{Credential, Permission, PermissionSet, Principal, TokenHash};

use crate::flags::parse_time;
use crate::process::atomic_file::{self, DirectoryLock};
use crate::terminal::failure::Failure;

/// The name of the file.
const FILE: &str = "access.toml";

/// The comment at the beginning of the file.
const HEAD: &str = "\
# Principals of this broker and their permissions. `tidings token` writes this file; a running broker
# applies changes within a second. The file holds hashes of tokens, not the tokens.
";

/// The interval between two checks for changes.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// The file of one data directory.
#[derive(Debug, Clone)]
pub(crate) struct AccessFile(PathBuf);

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AccessFileContents {
    #[serde(default, rename = "principal")]
    pub(crate) principals: Vec<PrincipalEntry>,
}

/// A principal with one of `token`, `certificate` and `unix-user`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct PrincipalEntry {
    pub(crate) name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) certificate: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) unix_user: Option<String>,
    #[serde(default)]
    pub(crate) allow: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) deny: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) created: Option<String>,
    /// From this time on the principal is as one that was revoked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) expires: Option<String>,
}

impl PrincipalEntry {
    /// Whether it has expired. An entry with a mistake has not.
    pub(crate) fn has_expired(&self) -> bool {
        self.expires().is_ok_and(|expires| expires.is_some_and(|at| at <= Timestamp::now()))
    }

    fn expires(&self) -> Result<Option<Timestamp>, String> {
        let expires = self.expires.as_deref().map(parse_time).transpose();
        expires.map_err(|problem| format!("expires: {problem}"))
    }

    /// The principal, or `None` if this machine does not know its user: that must not keep revoked
    /// principals logged in.
    fn to_principal(&self) -> Result<Option<Principal>, String> {
        let proof = match (&self.token, &self.certificate, &self.unix_user) {
            (Some(token), None, None) => Credential::Token(token.parse::<TokenHash>()?),
            (None, Some(name), None) => Credential::Certificate(name.as_str().into()),
            (None, None, Some(user)) => match uid_of(user) {
                Ok(uid) => Credential::UnixUser(uid),
                Err(problem) => {
                    tracing::warn!(name = self.name, problem, "this principal cannot log in");
                    return Ok(None);
                }
            },
            _ => return Err("expected one of token, certificate and unix-user".to_owned()),
        };
        let rights =
            PermissionSet::new(parse_permissions(&self.allow)?, parse_permissions(&self.deny)?);
        let expires = self.expires()?.map(Timestamp::as_millisecond);
        Ok(Some(Principal::new(&self.name, proof, rights).expiring(expires)))
    }
}

fn parse_permissions(words: &[String]) -> Result<Vec<Permission>, String> {
    words.iter().map(|word| word.parse()).collect()
}

/// The uid of a user of the machine, by name or number.
pub(crate) fn uid_of(user: &str) -> Result<u32, String> {
    if let Ok(number) = user.parse() {
        return Ok(number);
    }
    let found = nix::unistd::User::from_name(user).map_err(|error| format!("{user}: {error}"))?;
    found.map(|user| user.uid.as_raw()).ok_or_else(|| format!("no user {user:?} on this machine"))
}

impl AccessFile {
    /// The file of a data directory.
    pub(crate) fn at(data: &Path) -> Self {
        Self(data.join(FILE))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// The principals, if the file exists.
    pub(crate) fn read(&self) -> Result<Option<Vec<Principal>>, Failure> {
        let Some(contents) = self.contents()? else { return Ok(None) };
        let principal = |entry: &PrincipalEntry| {
            let wrong = |text: String| format!("{}: {:?}: {text}", self.0.display(), entry.name);
            entry.to_principal().map_err(|text| Failure::Usage(wrong(text)))
        };
        let known: Result<Vec<_>, _> = contents.principals.iter().map(principal).collect();
        Ok(Some(known?.into_iter().flatten().collect()))
    }

    /// The contents, if the file exists.
    pub(crate) fn contents(&self) -> Result<Option<AccessFileContents>, Failure> {
        let text = match fs::read_to_string(&self.0) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                return Err(Failure::failed(format!("cannot read {}: {error}", self.0.display())));
            }
        };
        toml::from_str(&text).map(Some).map_err(|error| {
            let message = error.message().replace('\n', "; ");
            let line = error.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
            Failure::Usage(format!("{}:{line}: {message}", self.0.display()))
        })
    }

    /// Locks the file against changes by other commands.
    pub(crate) fn lock(&self) -> Result<DirectoryLock, Failure> {
        let folder = self.0.parent().unwrap_or(Path::new("."));
        DirectoryLock::acquire(folder)
            .map_err(|error| Failure::failed(format!("cannot lock {}: {error}", folder.display())))
    }

    /// Replaces the file atomically.
    pub(crate) fn write(&self, contents: &AccessFileContents) -> Result<(), Failure> {
        let text = toml::to_string(contents).expect("names and lists of words can be written");
        atomic_file::replace(&self.0, &format!("{HEAD}\n{text}"))
            .map_err(|error| Failure::failed(format!("cannot write {}: {error}", self.0.display())))
    }

    /// Applies changes of the file to a broker. A file that cannot be read changes nothing. Never
    /// ends.
    pub(crate) async fn watch(&self, broker: &Broker) {
        // The file may have changed since the start read it.
        let (mut seen, mut refused, mut is_first) = (None, None, true);
        loop {
            let now = self.version();
            if now == seen {
                tokio::time::sleep(POLL_INTERVAL).await;
                continue;
            }
            match self.read() {
                Ok(Some(principals)) => {
                    seen = now;
                    let count = principals.len();
                    if broker.set_principals(principals) || !is_first {
                        tracing::info!(principals = count, "{} has changed", self.0.display());
                    }
                    is_first = false;
                }
                // Removing the file must not open the broker.
                Ok(None) => {
                    seen = now;
                    tracing::warn!(
                        "{} was removed; the permissions stay as they are until it is back",
                        self.0.display()
                    );
                }
                // It may be readable a moment later.
                Err(failure) if refused != Some(now) => {
                    refused = Some(now);
                    let problem = failure.text().unwrap_or_default();
                    tracing::error!(problem, "the permissions stay as they are");
                }
                Err(_) => tokio::time::sleep(POLL_INTERVAL).await,
            }
        }
    }

    /// Identifies a version of the file.
    fn version(&self) -> Option<[i64; 5]> {
        let found = fs::metadata(&self.0).ok()?;
        let [inode, size] = [found.ino(), found.size()].map(u64::cast_signed);
        Some([inode, size, found.mtime_nsec(), found.ctime(), found.ctime_nsec()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(text: &str) -> String {
        let folder = tempfile::tempdir().unwrap();
        let principals = AccessFile::at(folder.path());
        fs::write(principals.path(), text).unwrap();
        match principals.read() {
            Err(failure) => {
                failure.text().unwrap().replace(&folder.path().display().to_string(), "")
            }
            Ok(known) => panic!("{text:?}: {known:?}"),
        }
    }

    #[test]
    fn a_mistake_is_reported_with_its_place() {
        assert!(problem("x").starts_with("/access.toml:1: "), "{}", problem("x"));
        let unknown = problem("\n[[principal]]\nname = 'a'\ntokn = 'x'\n");
        assert!(unknown.starts_with("/access.toml:"), "{unknown}");
        assert!(problem("[[principal]]\nname = 'a'\n").contains("\"a\": expected one of token"));
        let wrong = problem("[[principal]]\nname = 'a'\ncertificate = 'a'\nallow = ['root']\n");
        assert!(wrong.contains("\"a\": \"root\" is not a permission"), "{wrong}");
        assert!(problem("[[principal]]\nname = 'a'\ntoken = 'sha256:7'\n").contains("hexadecimal"));
        let late = problem("[[principal]]\nname = 'a'\nunix-user = '0'\nexpires = 'soon'\n");
        assert!(late.contains("\"a\": expires: expected a time"), "{late}");
    }

    #[test]
    fn a_written_file_is_readable_again_by_its_owner_only() {
        let folder = tempfile::tempdir().unwrap();
        let principals = AccessFile::at(folder.path());
        assert!(principals.read().unwrap().is_none());
        let entry = PrincipalEntry {
            name: "ci".into(),
            token: None,
            certificate: None,
            unix_user: Some("0".into()),
            allow: vec!["pub:*".into()],
            deny: vec!["pub:job-done".into()],
            created: None,
            expires: Some("2027-01-31T00:00:00Z".into()),
        };
        principals.write(&AccessFileContents { principals: vec![entry] }).unwrap();
        assert_eq!(principals.read().unwrap().unwrap().len(), 1);
        assert_eq!(fs::metadata(principals.path()).unwrap().mode() & 0o077, 0);
        principals.write(&AccessFileContents::default()).unwrap();
        assert_eq!(
            principals.read().unwrap().unwrap().len(),
            0,
            "an empty list differs from a missing file"
        );
    }
}
