//! Signatures made by openssl.

use std::io::Write;
use std::process::{Command, Stdio};

/// Runs openssl and returns its output.
#[track_caller]
pub(crate) fn openssl(arguments: &[&str], input: &[u8]) -> Vec<u8> {
    let mut openssl = Command::new("openssl")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    openssl.stdin.take().unwrap().write_all(input).unwrap();
    let output = openssl.wait_with_output().unwrap();
    assert!(output.status.success(), "{arguments:?}");
    output.stdout
}

/// HMAC with this hash function, in hexadecimal digits.
#[track_caller]
pub(crate) fn hmac(hash: &str, secret: &str, text: &str) -> String {
    let hash = format!("-{hash}");
    let printed = openssl(&["dgst", &hash, "-hmac", secret, "-hex"], text.as_bytes());
    String::from_utf8(printed).unwrap().trim().rsplit(' ').next().unwrap().to_owned()
}
