//! A certificate for a local broker, and the rate of encryption to compare with.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use rcgen::generate_simple_self_signed;

use crate::server;

/// Bytes of a TLS record, which are encrypted at once.
const RECORD_BYTES: usize = 16 * 1024;

/// How long the rate is measured, in processor time.
const MEASURED: Duration = Duration::from_secs(1);

/// A certificate and its key, as files.
#[derive(Debug)]
pub(crate) struct Certificate {
    /// The certificate (PEM).
    pub(crate) cert: PathBuf,
    /// The key (PEM).
    pub(crate) key: PathBuf,
}

/// Creates a certificate for this machine in that directory.
pub(crate) fn create_certificate(directory: &Path) -> Result<Certificate> {
    let created = generate_simple_self_signed(["localhost".to_owned(), "127.0.0.1".to_owned()])?;
    let files = Certificate { cert: directory.join("bench.pem"), key: directory.join("bench.key") };
    fs::write(&files.cert, created.cert.pem()).context("cannot write the certificate")?;
    fs::write(&files.key, created.signing_key.serialize_pem()).context("cannot write its key")?;
    Ok(files)
}

/// Bytes per second of processor time that one processor encrypts with AES-256-GCM, record by
/// record.
pub(crate) fn aes_gcm_bytes_per_second(processor: Option<usize>) -> Result<f64> {
    match processor {
        Some(processor) => server::run_pinned(processor, encrypt)?,
        None => encrypt(),
    }
}

#[expect(clippy::cast_precision_loss, reason = "a rate")]
fn encrypt() -> Result<f64> {
    let key = UnboundKey::new(&AES_256_GCM, &[0; 32]).map_err(|_| anyhow!("no AES-256-GCM"))?;
    let (key, mut record) = (LessSafeKey::new(key), vec![0; RECORD_BYTES]);
    let (start, mut records) = (server::thread_cpu_time()?, 0_u32);
    loop {
        // Each nonce would be used once if the result were sent; it is dropped.
        let nonce = Nonce::assume_unique_for_key([0; 12]);
        let _tag = key
            .seal_in_place_separate_tag(nonce, Aad::empty(), &mut record)
            .map_err(|_| anyhow!("cannot encrypt"))?;
        records += 1;
        let taken = server::thread_cpu_time()?.saturating_sub(start);
        if taken >= MEASURED {
            return Ok(f64::from(records) * RECORD_BYTES as f64 / taken.as_secs_f64());
        }
    }
}
