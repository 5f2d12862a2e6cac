//! The flags for the broker that a command connects to, and for the security of that connection.

use std::ffi::OsStr;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, Error, FromArgMatches};
use tidings_client::{ClientTls, Security, TokenSource};
use tidings_protocol::Token;

use crate::flags::address::BrokerAddress;

/// The environment variable that holds a token.
pub(crate) const TOKEN_VARIABLE: &str = "TIDINGS_TOKEN";

/// The broker that a command connects to.
#[derive(Debug, Clone)]
pub(crate) struct BrokerFlag {
    pub(crate) broker: BrokerAddress,
}

/// The same for commands that also work without a broker.
#[derive(Debug, Clone)]
pub(crate) struct OptionalBrokerFlag {
    pub(crate) broker: Option<BrokerAddress>,
}

/// The words of both. Each gives the help of `--broker`, since the defaults differ.
#[derive(Args)]
struct BrokerFlagArgs {
    #[arg(long, value_name = "HOST:PORT")]
    broker: Option<BrokerAddress>,

    #[command(flatten)]
    _context: ContextFlag,

    #[command(flatten)]
    security: SecurityFlags,
}

/// The context, which sets the defaults of the other flags before they are parsed.
#[derive(Args)]
struct ContextFlag {
    /// Connect as this context says (see tidings context)
    #[arg(id = "context", long = "context", value_name = "CONTEXT")]
    _context: Option<String>,
}

/// Each flag except the last one turns on TLS.
#[derive(Debug, Args)]
pub(crate) struct SecurityFlags {
    /// Encrypt the connection to the broker and verify its certificate (not used on a unix socket)
    #[arg(long)]
    pub(crate) tls: bool,

    /// PEM file with the authorities that may sign the broker's certificate [default: those of the
    /// system]
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,

    /// PEM file with revocation lists, at least one for each authority in the broker's certificate
    /// chain
    #[arg(long, value_name = "FILE")]
    pub(crate) crl: Option<PathBuf>,

    /// PEM file with the client certificate for login
    #[arg(long, value_name = "FILE")]
    pub(crate) cert: Option<PathBuf>,

    /// PEM file with the private key of --cert [default: the file of --cert]
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub(crate) cert_key: Option<PathBuf>,

    /// File with the token for login [default: the token in `TIDINGS_TOKEN`]
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
}

impl SecurityFlags {
    /// Drops the token file of a context or a configuration file if the environment has a token.
    fn prefer_environment(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        let is_default = matches.value_source("token_file") == Some(ValueSource::DefaultValue);
        if is_default && token_from_env(std::env::var_os(TOKEN_VARIABLE).as_deref())?.is_some() {
            self.token_file = None;
        }
        Ok(())
    }
}

impl TryFrom<SecurityFlags> for Security {
    type Error = Error;

    fn try_from(flags: SecurityFlags) -> Result<Self, Error> {
        let SecurityFlags { tls, ca, crl, cert, cert_key, token_file } = flags;
        let is_asked_for = tls || ca.is_some() || crl.is_some() || cert.is_some();
        let tls = is_asked_for.then_some(ClientTls { ca, crl, cert, key: cert_key });
        let token = match token_file {
            Some(file) => Some(TokenSource::File(file)),
            None => {
                token_from_env(std::env::var_os(TOKEN_VARIABLE).as_deref())?.map(TokenSource::Given)
            }
        };
        Ok(Self { tls, token })
    }
}

/// The token in the environment. It is never a flag, since every user of the machine can read
/// flags.
fn token_from_env(variable: Option<&OsStr>) -> Result<Option<Token>, Error> {
    let Some(value) = variable else { return Ok(None) };
    let word = value.to_str().map(str::trim);
    if word == Some("") {
        return Ok(None);
    }
    let token = word.and_then(|word| Token::new(word).ok());
    // The message leaves out the value, which is or was meant to be a secret.
    let text = format!(
        "the environment variable {TOKEN_VARIABLE} is not a token; a token is one word of up to 256 bytes"
    );
    token.map(Some).ok_or_else(|| Error::raw(ErrorKind::ValueValidation, text))
}

impl TryFrom<BrokerFlagArgs> for BrokerFlag {
    type Error = Error;

    fn try_from(flag: BrokerFlagArgs) -> Result<Self, Error> {
        // A context and a configuration file set the flag, so nothing names a broker here.
        let broker = flag.broker.unwrap_or_else(BrokerAddress::nearby);
        Ok(Self { broker: broker.with_security(flag.security.try_into()?) })
    }
}

impl TryFrom<BrokerFlagArgs> for OptionalBrokerFlag {
    type Error = Error;

    fn try_from(flag: BrokerFlagArgs) -> Result<Self, Error> {
        let security: Security = flag.security.try_into()?;
        Ok(Self { broker: flag.broker.map(|broker| broker.with_security(security)) })
    }
}

/// Parses and converts the flags, so that no address exists without its security.
macro_rules! parse_as {
    ($flag:ty, $default:literal) => {
        impl Args for $flag {
            fn augment_args(command: Command) -> Command {
                let help = concat!(
                    "Address of the broker: HOST:PORT, several with commas, or unix:PATH [default: ",
                    $default,
                    "]"
                );
                BrokerFlagArgs::augment_args(command).mut_arg("broker", |arg| arg.help(help))
            }

            fn augment_args_for_update(command: Command) -> Command {
                Self::augment_args(command)
            }
        }

        impl FromArgMatches for $flag {
            fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
                let mut flags = BrokerFlagArgs::from_arg_matches(matches)?;
                flags.security.prefer_environment(matches)?;
                Self::try_from(flags)
            }

            fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
                *self = Self::from_arg_matches(matches)?;
                Ok(())
            }
        }
    };
}

parse_as!(BrokerFlag, "the broker of ./tidings-data, or 127.0.0.1:12345");
parse_as!(OptionalBrokerFlag, "the broker on the data directory, or a new one");

#[cfg(test)]
mod tests {
    use super::*;

    fn broker(words: &[&str]) -> BrokerAddress {
        let words = ["tidings"].iter().chain(words);
        let matches = BrokerFlag::augment_args(Command::new("tidings")).get_matches_from(words);
        BrokerFlag::from_arg_matches(&matches).unwrap().broker
    }

    #[test]
    fn an_environment_variable_that_is_not_a_token_is_rejected() {
        assert_eq!(token_from_env(None).unwrap(), None);
        assert_eq!(token_from_env(Some(OsStr::new(" \n"))).unwrap(), None);
        assert_eq!(token_from_env(Some(OsStr::new("x\n"))).unwrap(), Token::new("x").ok());
        let long = "x".repeat(257);
        for wrong in ["hush hush", "hush\u{7}", &long] {
            let message = token_from_env(Some(OsStr::new(wrong))).unwrap_err().to_string();
            assert!(message.contains("TIDINGS_TOKEN") && !message.contains("hush"), "{message}");
        }
    }

    #[test]
    fn each_tls_flag_turns_on_tls() {
        assert_eq!(broker(&[]).security().tls, None);
        assert_eq!(broker(&["--tls"]).security().tls, Some(ClientTls::default()));
        let ca = ClientTls { ca: Some("a".into()), ..ClientTls::default() };
        assert_eq!(broker(&["--ca", "a"]).security().tls, Some(ca));
        let crl = ClientTls { crl: Some("r".into()), ..ClientTls::default() };
        assert_eq!(broker(&["--crl", "r"]).security().tls, Some(crl));
        let (cert, key) = (Some("c".into()), Some("k".into()));
        let cert = ClientTls { cert, key, ..ClientTls::default() };
        assert_eq!(broker(&["--cert", "c", "--cert-key", "k"]).security().tls, Some(cert));
        assert_eq!(broker(&["--tls", "--broker", "unix:/a"]).security().tls, None);
        let file = TokenSource::File("t".into());
        assert_eq!(broker(&["--token-file", "t"]).security().token, Some(file));
    }
}
