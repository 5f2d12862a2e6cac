//! Standard output and standard error, each written by a thread: who reads them may take time, and holds up nobody but
//! those who have something to say there.

#![expect(clippy::disallowed_methods, reason = "what blocks is a thread of its own")]

use std::{
    io::{self, Write},
    thread,
};

use tokio::sync::{mpsc, oneshot};

/// Writes pieces one after the other.
#[derive(Debug, Clone)]
pub(super) struct Writer(mpsc::Sender<Piece>);

#[derive(Debug)]
struct Piece {
    bytes: Vec<u8>,
    written: oneshot::Sender<io::Result<()>>,
}

impl Writer {
    /// Begins a thread, which ends with the last clone of this.
    pub(super) fn new(mut to: impl Write + Send + 'static) -> Self {
        // Each writer of a piece waits for it, so nothing gathers here.
        let (sender, mut pieces) = mpsc::channel::<Piece>(1);
        thread::spawn(move || {
            while let Some(Piece { bytes, written }) = pieces.blocking_recv() {
                // Whoever does not wait any more does not want to know.
                let _ = written.send(to.write_all(&bytes).and_then(|()| to.flush()));
            }
        });
        Self(sender)
    }

    /// Writes all of it, and returns when it is written. Dropped before that, it may or may not be written.
    pub(super) async fn write(&self, bytes: Vec<u8>) -> io::Result<()> {
        let (written, answer) = oneshot::channel();
        let ended = || io::Error::other("what writes has ended");
        self.0.send(Piece { bytes, written }).await.map_err(|_| ended())?;
        answer.await.map_err(|_| ended())?
    }
}
