//! The broker that a command talks to, and how that connection is encrypted.

use std::path::PathBuf;

use clap::{ArgMatches, Args, Command, Error, FromArgMatches};
use tidings_protocol::{
    Token,
    client::{ClientTls, Security, TokenSource},
};

use crate::address::BrokerAddress;

/// The variable of the environment that holds a token itself.
pub(crate) const TOKEN_VARIABLE: &str = "TIDINGS_TOKEN";

/// The broker that a command talks to.
#[derive(Debug, Clone)]
pub(crate) struct BrokerFlag {
    pub(crate) broker: BrokerAddress,
}

/// The same where there may be none.
#[derive(Debug, Clone)]
pub(crate) struct BrokerIfAny {
    pub(crate) broker: Option<BrokerAddress>,
}

#[derive(Args)]
struct Flag {
    /// The broker: HOST:PORT, or unix:PATH
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:12345")]
    broker: BrokerAddress,

    #[command(flatten)]
    security: SecurityFlags,
}

#[derive(Args)]
struct IfAny {
    /// The broker: HOST:PORT, or unix:PATH [default: the one that runs on the data directory, or one of its own]
    #[arg(long, value_name = "HOST:PORT")]
    broker: Option<BrokerAddress>,

    #[command(flatten)]
    security: SecurityFlags,
}

/// Each of them but the last asks for TLS.
#[derive(Args)]
struct SecurityFlags {
    /// Encrypt the connection to the broker, and check its certificate (not that to a unix socket)
    #[arg(long)]
    tls: bool,

    /// Authorities that may have signed the broker's certificate, in PEM [default: those of the system]
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,

    /// A certificate to show to the broker, in PEM
    #[arg(long, value_name = "FILE")]
    cert: Option<PathBuf>,

    /// The key of --cert, in PEM [default: it is in the same file]
    // Also --key, where that is no key of a queue (cli.rs).
    #[arg(long, value_name = "FILE", requires = "cert")]
    cert_key: Option<PathBuf>,

    /// The file that holds the token to show to the broker [default: what `TIDINGS_TOKEN` in the environment holds itself]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

impl From<SecurityFlags> for Security {
    fn from(flags: SecurityFlags) -> Self {
        let SecurityFlags { tls, ca, cert, cert_key: key, token_file } = flags;
        let tls = (tls || ca.is_some() || cert.is_some()).then_some(ClientTls { ca, cert, key });
        // Never a flag: everybody on the machine sees those.
        let given = || Token::new(std::env::var(TOKEN_VARIABLE).ok()?.trim()).ok();
        let file = token_file.map(TokenSource::File);
        Self { tls, token: file.or_else(|| given().map(TokenSource::Given)) }
    }
}

impl From<Flag> for BrokerFlag {
    fn from(flag: Flag) -> Self {
        Self { broker: flag.broker.with(flag.security.into()) }
    }
}

impl From<IfAny> for BrokerIfAny {
    fn from(flag: IfAny) -> Self {
        Self { broker: flag.broker.map(|broker| broker.with(flag.security.into())) }
    }
}

/// Parses as `$words` does. An address without what belongs to it is then nowhere to be had.
macro_rules! parse_as {
    ($flag:ty, $words:ty) => {
        impl Args for $flag {
            fn augment_args(command: Command) -> Command {
                <$words>::augment_args(command)
            }

            fn augment_args_for_update(command: Command) -> Command {
                <$words>::augment_args_for_update(command)
            }
        }

        impl FromArgMatches for $flag {
            fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
                <$words>::from_arg_matches(matches).map(Self::from)
            }

            fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
                *self = Self::from_arg_matches(matches)?;
                Ok(())
            }
        }
    };
}

parse_as!(BrokerFlag, Flag);
parse_as!(BrokerIfAny, IfAny);

#[cfg(test)]
mod tests {
    use super::*;

    fn broker(words: &[&str]) -> BrokerAddress {
        let words = ["tidings"].iter().chain(words);
        let matches = BrokerFlag::augment_args(Command::new("tidings")).get_matches_from(words);
        BrokerFlag::from_arg_matches(&matches).unwrap().broker
    }

    #[test]
    fn each_flag_about_tls_asks_for_it() {
        assert_eq!(broker(&[]).security().tls, None);
        assert_eq!(broker(&["--tls"]).security().tls, Some(ClientTls::default()));
        let ca = ClientTls { ca: Some("a".into()), ..ClientTls::default() };
        assert_eq!(broker(&["--ca", "a"]).security().tls, Some(ca));
        let cert = ClientTls { cert: Some("c".into()), key: Some("k".into()), ca: None };
        assert_eq!(broker(&["--cert", "c", "--cert-key", "k"]).security().tls, Some(cert));
        assert_eq!(broker(&["--tls", "--broker", "unix:/a"]).security().tls, None);
        let file = TokenSource::File("t".into());
        assert_eq!(broker(&["--token-file", "t"]).security().token, Some(file));
    }
}
