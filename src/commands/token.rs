//! `tidings token`: manages principals, their tokens and permissions.

use clap::{ArgGroup, Args, Subcommand};
use jiff::Timestamp;
use serde_json::{Value, json};
use tidings_broker::access::{Permission, TokenHash, new_token};

use crate::flags::confirmation::YesFlag;
use crate::flags::{DataFlag, of_existing_data, parse_expiry, parse_plain_name};
use crate::process::atomic_file::DirectoryLock;
use crate::process::stack;
use crate::services::principals::{AccessFile, AccessFileContents, PrincipalEntry, uid_of};
use crate::terminal::failure::Failure;
use crate::terminal::output::Console;

macro_rules! permissions {
    () => {
        "\
Permissions:
  pub:TOPIC, sub:TOPIC   publish on the topic, read the topic
  group:GROUP            work for the group and inspect it
  job:JOB                open, extend, watch and cancel the job; publish with job=
  every, prio, hub       use the attributes of these names
  url:PREFIX             publish only URLs below PREFIX; without this permission, any URL
  monitor                read all counts and settings, but no events
  admin                  change topics and groups
  all                    everything
TOPIC, GROUP and JOB are names, or prefixes that end in *. --deny overrides --allow:
  --allow all --deny sub:secret-*      everything except reading these topics
  --allow all --deny admin             everything except changing topics and groups
  --allow 'pub:*' --deny url:http://a.example/    publish anything except URLs below this one
  --allow .. --deny all                nothing, until this is changed"
    };
}

pub(crate) const PERMISSIONS: &str = permissions!();

const EXAMPLES: &str = concat!(
    "\
Examples:
  tidings token create blog --allow pub:new-url --allow url:https://blog.example/
  tidings token create reader --allow 'sub:*' --deny sub:dead-letter
  tidings token create crawler-7 --allow group:crawlers --allow pub:post-ready
  tidings token create guest --allow monitor --expires 12h
  tidings token create alice --unix-user alice --allow all
  tidings token set reader --allow 'sub:post-*'
  tidings token ls
  tidings token revoke blog

",
    permissions!(),
    "

The first principal makes login required for all clients. A client logs in with HELLO token=..,
by HTTP with `Authorization: Bearer ..`, with --token-file FILE or TIDINGS_TOKEN of these
commands, with a certificate, or as a user of the machine over the unix socket. A running broker
applies changes within a second; a broker that started before the first principal existed must be
restarted.

Exit codes: 0 success; 1 failure; 2 wrong usage."
);

/// The subcommands of `tidings token`.
#[derive(Debug, Subcommand)]
#[command(after_help = EXAMPLES)]
pub(crate) enum Token {
    /// Create a principal and print its token once; or allow a certificate or a user of the machine
    Create(CreateArgs),
    /// Replace the permissions of a principal
    Set(SetArgs),
    /// List all principals and their permissions
    #[command(alias = "list")]
    Ls(LsArgs),
    /// Remove a principal and close its connections
    Revoke(RevokeArgs),
}

/// The flags of `tidings token ls`.
#[derive(Debug, Args)]
#[command(mut_arg("data", of_existing_data))]
pub(crate) struct LsArgs {
    /// Print one JSON object on each line
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    data: DataFlag,
}

/// The permissions of a principal.
#[derive(Debug, Args)]
pub(crate) struct PermissionFlags {
    /// Allow this permission; may be repeated (see the list below)
    #[arg(long, value_name = "PERMISSION", required = true)]
    allow: Vec<Permission>,

    /// Deny this permission, even if --allow includes it; may be repeated
    #[arg(long, value_name = "PERMISSION")]
    deny: Vec<Permission>,
}

/// The flags of `tidings token create`.
#[derive(Debug, Args)]
#[command(after_help = PERMISSIONS)]
#[command(group = ArgGroup::new("proof").args(["certificate", "unix_user"]))]
pub(crate) struct CreateArgs {
    /// Name of the principal, also in logs: letters, digits, `.`, `_` and `-`
    #[arg(value_parser = parse_plain_name)]
    name: String,

    #[command(flatten)]
    rights: PermissionFlags,

    /// Log in with a client certificate for this name instead of a token (the broker needs
    /// --client-ca)
    #[arg(long, value_name = "NAME")]
    certificate: Option<String>,

    /// Log in as this user of the machine over the unix socket instead of a token
    #[arg(long, value_name = "USER")]
    unix_user: Option<String>,

    /// Let the principal expire after this duration, such as 12h, or at this time, such as
    /// 2027-01-31T00:00Z [default: never]
    #[arg(long, value_name = "WHEN", value_parser = parse_expiry)]
    expires: Option<Timestamp>,

    #[command(flatten)]
    data: DataFlag,
}

/// The flags of `tidings token set`.
#[derive(Debug, Args)]
#[command(after_help = PERMISSIONS, mut_arg("data", of_existing_data))]
pub(crate) struct SetArgs {
    /// Name of the principal
    #[arg(value_parser = parse_plain_name)]
    name: String,

    #[command(flatten)]
    rights: PermissionFlags,

    /// Let the principal expire after this duration, such as 12h, or at this time, such as
    /// 2027-01-31T00:00Z [default: as before]
    #[arg(long, value_name = "WHEN", value_parser = parse_expiry)]
    expires: Option<Timestamp>,

    #[command(flatten)]
    data: DataFlag,
}

/// The flags of `tidings token revoke`.
#[derive(Debug, Args)]
#[command(mut_arg("data", of_existing_data))]
pub(crate) struct RevokeArgs {
    /// Name of the principal
    #[arg(value_parser = parse_plain_name)]
    name: String,

    #[command(flatten)]
    yes: YesFlag,

    #[command(flatten)]
    data: DataFlag,
}

/// Edits the file in the data directory, with or without a running broker.
pub(crate) async fn run(what: Token) -> Result<(), Failure> {
    match what {
        Token::Create(args) => create(args),
        Token::Set(SetArgs { name, rights, expires, data }) => {
            change_principals(&data, &name, |all| {
                for entry in all.iter_mut().filter(|entry| entry.name == name) {
                    (entry.allow, entry.deny) = rights.words();
                    if let Some(at) = expires {
                        entry.expires = Some(at.to_string());
                    }
                    if entry.has_expired() {
                        let text = format!("{name} has expired; say until when with --expires");
                        return Err(Failure::failed(text));
                    }
                }
                Ok(())
            })
        }
        Token::Ls(LsArgs { json, data }) => list(&data, json),
        Token::Revoke(RevokeArgs { name, yes, data }) => {
            let question = format!("revoke {name} and close its connections?");
            yes.confirm(async { Ok(question) }).await?;
            change_principals(&data, &name, |all| {
                all.retain(|entry| entry.name != name);
                Ok(())
            })
        }
    }
}

impl PermissionFlags {
    fn words(&self) -> (Vec<String>, Vec<String>) {
        let words = |rights: &[Permission]| rights.iter().map(ToString::to_string).collect();
        (words(&self.allow), words(&self.deny))
    }
}

fn create(args: CreateArgs) -> Result<(), Failure> {
    let (allow, deny) = args.rights.words();
    if let Some(user) = &args.unix_user {
        uid_of(user).map_err(Failure::Usage)?;
    }
    stack::make_data_directory(&args.data.data)?;
    let (principals, known, _lock) = open_locked(&args.data)?;
    let is_first = known.is_none();
    let mut contents = known.unwrap_or_default();
    contents.principals.retain(|entry| entry.name != args.name || !entry.has_expired());
    if contents.principals.iter().any(|entry| entry.name == args.name) {
        let name = &args.name;
        let text = format!(
            "{name} exists already; change it with `tidings token set {name}`, or remove it with `tidings token revoke {name}`"
        );
        return Err(Failure::failed(text));
    }
    let by_token = args.certificate.is_none() && args.unix_user.is_none();
    let token = by_token.then(new_token);
    contents.principals.push(PrincipalEntry {
        name: args.name.clone(),
        token: token.as_ref().map(|token| TokenHash::of(token).to_string()),
        certificate: args.certificate,
        unix_user: args.unix_user,
        allow,
        deny,
        created: Some(Timestamp::now().to_string()),
        expires: args.expires.map(|at| at.to_string()),
    });
    principals.write(&contents)?;
    let mut console = Console::new();
    if let Some(token) = &token {
        // The token stands alone on its line, for scripts.
        console.line(token.secret()).map_err(|_| Failure::OutputClosed)?;
        console.note(&format!("this is the token of {}; it is not shown again", args.name));
    }
    if is_first {
        let data = args.data.data.display();
        console.note(&format!(
            "login is now required for all clients; restart a broker that already runs on {data}"
        ));
    }
    Ok(())
}

/// Adds a principal with these permissions, named `prefix` and a number, and returns its token.
/// `None` if login is not required. Removes expired principals of such names.
pub(crate) fn create_temporary(
    data: &DataFlag,
    prefix: &str,
    allow: &[Permission],
    expires: Timestamp,
) -> Result<Option<tidings_protocol::Token>, Failure> {
    let (file, Some(mut contents), _lock) = open_locked(data)? else { return Ok(None) };
    let principals = &mut contents.principals;
    principals.retain(|entry| !entry.name.starts_with(prefix) || !entry.has_expired());
    let mut names = (1..).map(|number: u64| format!("{prefix}{number}"));
    let is_free = |name: &String| principals.iter().all(|entry| entry.name != *name);
    let name = names.find(is_free).expect("there are more numbers than principals");
    let token = new_token();
    principals.push(PrincipalEntry {
        name,
        token: Some(TokenHash::of(&token).to_string()),
        certificate: None,
        unix_user: None,
        allow: allow.iter().map(ToString::to_string).collect(),
        deny: Vec::new(),
        created: Some(Timestamp::now().to_string()),
        expires: Some(expires.to_string()),
    });
    file.write(&contents)?;
    Ok(Some(token))
}

/// The locked file and its contents, if it exists. Other commands cannot change it meanwhile.
fn open_locked(
    data: &DataFlag,
) -> Result<(AccessFile, Option<AccessFileContents>, DirectoryLock), Failure> {
    let principals = AccessFile::at(&data.data);
    let lock = principals.lock()?;
    let contents = principals.contents()?;
    Ok((principals, contents, lock))
}

/// Changes the principals, if one has this name. Writes nothing if `change` fails.
fn change_principals(
    data: &DataFlag,
    name: &str,
    change: impl FnOnce(&mut Vec<PrincipalEntry>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let (file, contents, _lock) = open_locked(data)?;
    let mut contents = contents.unwrap_or_default();
    if !contents.principals.iter().any(|entry| entry.name == name) {
        return Err(Failure::failed(format!("no principal {name} in {}", file.path().display())));
    }
    change(&mut contents.principals)?;
    file.write(&contents)
}

fn list(data: &DataFlag, json: bool) -> Result<(), Failure> {
    let principals = AccessFile::at(&data.data);
    let mut console = Console::new();
    let Some(contents) = principals.contents()? else {
        let path = principals.path().display();
        console.note(&format!("{path} does not exist: login is not required"));
        return Ok(());
    };
    for entry in &contents.principals {
        if json {
            console.line(&object(entry).to_string()).map_err(|_| Failure::OutputClosed)?;
            continue;
        }
        let proof = match (&entry.certificate, &entry.unix_user) {
            (Some(name), _) => format!("certificate={name}"),
            (_, Some(user)) => format!("unix-user={user}"),
            _ => "token".to_owned(),
        };
        let deny = (!entry.deny.is_empty()).then(|| format!(" deny={}", entry.deny.join(",")));
        let created = entry.created.as_ref().map(|created| format!(" created={created}"));
        let word = if entry.has_expired() { "expired" } else { "expires" };
        let expires = entry.expires.as_ref().map(|at| format!(" {word}={at}"));
        let line = [
            Some(format!("{} {proof} allow={}", entry.name, entry.allow.join(","))),
            deny,
            created,
            expires,
        ];
        let line: String = line.into_iter().flatten().collect();
        console.line(&line).map_err(|_| Failure::OutputClosed)?;
    }
    Ok(())
}

/// A principal without its token. What it does not have is `null`.
fn object(entry: &PrincipalEntry) -> Value {
    let PrincipalEntry { name, certificate, unix_user, allow, deny, created, expires, .. } = entry;
    json!({
        "name": name,
        "certificate": certificate,
        "unix-user": unix_user,
        "allow": allow,
        "deny": deny,
        "created": created,
        "expires": expires,
        "expired": entry.has_expired(),
    })
}
