//! Standard output and standard error, each written by a thread, so that a slow reader delays only
//! the tasks that write there.

#![expect(clippy::disallowed_methods, reason = "writing blocks a thread")]

use std::io::{self, Write};
use std::thread;

use tokio::sync::{mpsc, oneshot};

/// Writes pieces one after the other.
#[derive(Debug, Clone)]
pub(super) struct OutputWriter(mpsc::Sender<Piece>);

#[derive(Debug)]
struct Piece {
    bytes: Vec<u8>,
    written: oneshot::Sender<io::Result<()>>,
}

impl OutputWriter {
    /// Starts the thread, which ends with the last clone of this value.
    pub(super) fn new(mut to: impl Write + Send + 'static) -> Self {
        // Each caller waits for its piece, so nothing accumulates here.
        let (sender, mut pieces) = mpsc::channel::<Piece>(1);
        thread::spawn(move || {
            while let Some(Piece { bytes, written }) = pieces.blocking_recv() {
                // The caller may have stopped waiting.
                let _ = written.send(to.write_all(&bytes).and_then(|()| to.flush()));
            }
        });
        Self(sender)
    }

    /// Writes all bytes, and returns when they are written. If the future is dropped, they may or
    /// may not be written.
    pub(super) async fn write(&self, bytes: Vec<u8>) -> io::Result<()> {
        let (written, answer) = oneshot::channel();
        let ended = || io::Error::other("the writer thread has ended");
        self.0.send(Piece { bytes, written }).await.map_err(|_| ended())?;
        answer.await.map_err(|_| ended())?
    }
}
