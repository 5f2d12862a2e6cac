//! Test servers of a few lines.

#![expect(clippy::disallowed_methods, reason = "servers are tasks")]

use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;

use tidings_protocol::CanonicalUrl;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A server that handles each connection with the given function.
pub(crate) struct Origin {
    pub(crate) address: SocketAddr,
    pub(crate) connections: Arc<AtomicUsize>,
}

impl Origin {
    pub(crate) async fn start<F, D>(behave: F) -> Self
    where
        F: Fn(TcpStream) -> D + Send + 'static,
        D: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&connections);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                counted.fetch_add(1, SeqCst);
                tokio::spawn(behave(stream));
            }
        });
        Self { address, connections }
    }

    /// Sends the same bytes for every request, then closes the connection.
    pub(crate) async fn answering(answer: impl Into<Vec<u8>>) -> Self {
        let answer = Arc::new(answer.into());
        Self::start(move |mut stream| {
            let answer = Arc::clone(&answer);
            async move {
                read_head(&mut stream).await;
                // A client that has read enough resets the connection.
                let _ = stream.write_all(&answer).await;
                let _ = stream.shutdown().await;
                let _ = stream.read(&mut [0; 1]).await;
            }
        })
        .await
    }

    pub(crate) fn url(&self, path: &str) -> CanonicalUrl<'static> {
        format!("http://{}{path}", self.address).parse().unwrap()
    }
}

/// The head of a request; empty at the end of the connection.
pub(crate) async fn read_head(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte).await {
            Ok(1) => head.push(byte[0]),
            _ => return String::new(),
        }
    }
    String::from_utf8(head).unwrap()
}
