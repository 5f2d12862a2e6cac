//! The bodies of pages in databases: decoded as for `hash`, and rendered as for `rendered_hash`;
//! compressed, each content once.
//!
//! They are gzip files, because the programs of every system can read those: `SQLite` and
//! `PostgreSQL` have no function that decompresses.

use std::collections::BTreeMap;
use std::sync::{Arc, Once};
use std::{io, mem};

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::report::{PageId, PageRecord};
use crate::spool::Spool;

/// Larger bodies, decoded, are not kept: a row is in memory as a whole, here and in the programs
/// that read it.
const BODY_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// Compression level of bodies, of 9: the default of gzip, since each is compressed once.
const BODY_LEVEL: u32 = 6;

/// The value of `encoding`, as in `Content-Encoding`.
pub(super) const ENCODING: &str = "gzip";

/// The values of a row of the table `bodies`; its `encoding` is [`ENCODING`].
#[derive(Debug)]
pub(super) struct CompressedBody {
    /// BLAKE3 of the decoded body, hexadecimal, as in `pages`.
    pub(super) hash: String,
    /// Bytes of the decoded body.
    pub(super) bytes: i64,
    pub(super) gzip: Vec<u8>,
}

/// Pages with complete bodies, by their hashes.
pub(super) type PagesByHash<'a> = BTreeMap<String, (&'a PageId, &'a Spool)>;

/// Prepares the bodies of a batch for a database.
#[derive(Debug)]
pub(super) struct BodyCompressor {
    is_on: bool,
    refused: Vec<(PageId, String)>,
}

impl BodyCompressor {
    /// If `is_on` is false, no bodies are stored.
    pub(super) const fn new(is_on: bool) -> Self {
        Self { is_on, refused: Vec::new() }
    }

    pub(super) const fn is_on(&self) -> bool {
        self.is_on
    }

    /// The bytes of a page in a batch. Decoded bodies count, so they bound what is compressed
    /// before a transaction.
    pub(super) fn batch_bytes(&self, record: &PageRecord) -> usize {
        let bodies: u64 = self.bodies_of_page(record).map(|(_, body)| body.len()).sum();
        record.bytes_in_memory() + usize::try_from(bodies).unwrap_or(usize::MAX)
    }

    /// The bodies of a batch that a database can keep, each content once.
    pub(super) fn bodies_of<'a>(&self, batch: &'a [Arc<PageRecord>]) -> PagesByHash<'a> {
        let bodies = batch.iter().flat_map(|record| {
            let bodies = self.bodies_of_page(record);
            bodies.map(|(hash, body)| (hash.to_hex().to_string(), (&record.page, body)))
        });
        bodies.collect()
    }

    /// The body, and the rendered HTML.
    fn bodies_of_page<'a>(
        &self,
        record: &'a PageRecord,
    ) -> impl Iterator<Item = (blake3::Hash, &'a Spool)> + use<'a> {
        static WARNED: Once = Once::new();

        // A page that was unchanged (304) has the hash of an earlier body.
        let body = record.hash.zip(record.body.as_ref());
        let body = body.filter(|_| record.report.status == Some(200));
        let rendering = record.rendering.as_ref();
        let html = rendering.and_then(|rendering| rendering.hash.zip(rendering.html.as_ref()));
        let is_on = self.is_on;
        [body, html].into_iter().flatten().filter(move |(_, body)| {
            if is_on && body.len() > BODY_BYTES_MAX {
                WARNED.call_once(|| {
                    tracing::warn!(
                        "{} has {} bytes: --bodies keeps no bodies of more than {BODY_BYTES_MAX}; \
                         this warning appears once",
                        record.report.url,
                        body.len()
                    );
                });
            }
            is_on && body.len() <= BODY_BYTES_MAX
        })
    }

    /// Compresses bodies. If a body is lost, its page is refused, because it must be fetched again.
    pub(super) fn compress(&mut self, bodies: PagesByHash<'_>) -> io::Result<Vec<CompressedBody>> {
        let mut compressed = Vec::with_capacity(bodies.len());
        for (hash, (page, body)) in bodies {
            match compress(body) {
                Ok(gzip) => {
                    let bytes = i64::try_from(body.len()).unwrap_or(i64::MAX);
                    compressed.push(CompressedBody { hash, bytes, gzip });
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    self.refused
                        .push((page.clone(), "the file of its body was removed".to_owned()));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(compressed)
    }

    pub(super) fn take_refused(&mut self) -> Vec<(PageId, String)> {
        mem::take(&mut self.refused)
    }
}

/// Reads the body in pieces.
fn compress(body: &Spool) -> io::Result<Vec<u8>> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::new(BODY_LEVEL));
    if io::copy(&mut body.read()?, &mut gzip)? != body.len() {
        return Err(io::Error::other("a body has changed while it was read"));
    }
    gzip.finish()
}
