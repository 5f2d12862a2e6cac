//! Calls `openssl` for benchmarks: it creates a certificate for a local broker, and measures the
//! rate of encryption to compare with.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::server;

/// Bytes of a TLS record, which are encrypted at once.
const RECORD_BYTES: &str = "16384";

/// The certificate is not an authority: clients reject a server certificate that is one.
const CONFIG: &str = "\
[req]
distinguished_name = name
x509_extensions = extensions
prompt = no
[name]
CN = localhost
[extensions]
basicConstraints = critical, CA:FALSE
subjectAltName = DNS:localhost, IP:127.0.0.1
";

/// A certificate and its key, as files.
#[derive(Debug)]
pub struct Certificate {
    /// The certificate (PEM).
    pub cert: PathBuf,
    /// The key (PEM).
    pub key: PathBuf,
}

/// Creates a certificate for this machine in that directory. It is valid for one day.
pub fn create_certificate(directory: &Path) -> Result<Certificate> {
    let config = directory.join("openssl.cnf");
    fs::write(&config, CONFIG).context("cannot write the configuration of openssl")?;
    let files = Certificate { cert: directory.join("bench.pem"), key: directory.join("bench.key") };
    let mut command = Command::new("openssl");
    command.args(["req", "-x509", "-nodes", "-days", "1", "-newkey", "ec"]);
    command.args(["-pkeyopt", "ec_paramgen_curve:prime256v1", "-config"]).arg(config);
    command.arg("-out").arg(&files.cert).arg("-keyout").arg(&files.key);
    run(&mut command)?;
    Ok(files)
}

/// Bytes per second of processor time that one processor encrypts with AES-256-GCM, record by
/// record.
pub fn aes_gcm_bytes_per_second(processor: Option<usize>) -> Result<f64> {
    let mut command = Command::new("openssl");
    command.args(["speed", "-mr", "-seconds", "1", "-bytes", RECORD_BYTES, "-evp", "aes-256-gcm"]);
    let output = match processor {
        Some(processor) => server::run_pinned(processor, || run(&mut command))??,
        None => run(&mut command)?,
    };
    parse_rate(&output).with_context(|| format!("cannot parse the output of openssl: {output}"))
}

/// The last field of the machine-readable line: `+F:25:AES-256-GCM:3444744274.75`.
fn parse_rate(output: &str) -> Option<f64> {
    let line = output.lines().find(|line| line.starts_with("+F:"))?;
    line.rsplit(':').next()?.trim().parse().ok().filter(|rate| *rate > 0.0)
}

fn run(command: &mut Command) -> Result<String> {
    let output = command.output().context("cannot run openssl; install it")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "openssl failed: {errors}");
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_read_from_its_line() {
        let output = "+DT:AES-256-GCM:1:16384\n+F:25:AES-256-GCM:3444744274.75\n";
        assert_eq!(parse_rate(output), Some(3_444_744_274.75));
        assert_eq!(parse_rate("+F:25:AES-256-GCM:nan"), None);
        assert_eq!(parse_rate("Doing AES-256-GCM"), None);
    }
}
