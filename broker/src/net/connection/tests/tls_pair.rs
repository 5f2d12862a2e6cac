//! Both ends of an encrypted connection, for tests with paused time.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::net::handshake_socket::HandshakeSocket;
use crate::net::stream::SocketStream;

/// The broker's end and the client's end. Their sockets have small buffers.
pub(in crate::net) async fn tls_pair() -> (SocketStream, TlsStream<TcpStream>) {
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap();
    let server_config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)
        .unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(cert.der().clone()).unwrap();
    let client_config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4 << 10).unwrap();
    let connecting = socket.connect(listener.local_addr().unwrap());
    let (server_end, client) = tokio::join!(listener.accept(), connecting);
    let (server_end, client) = (server_end.unwrap().0, client.unwrap());
    socket2::SockRef::from(&server_end).set_send_buffer_size(4 << 10).unwrap();
    let (acceptor, connector) =
        (TlsAcceptor::from(Arc::new(server_config)), TlsConnector::from(Arc::new(client_config)));
    let name = ServerName::try_from("localhost").unwrap();
    let handshake_socket = HandshakeSocket::new(server_end, usize::MAX);
    let (server_end, client) =
        tokio::join!(acceptor.accept(handshake_socket), connector.connect(name, client));
    (SocketStream::from_tls(server_end.unwrap()), client.unwrap())
}

/// Lets the runtime poll the kernel and run other tasks. With paused time the runtime never waits
/// for the kernel.
pub(in crate::net) async fn drive_io() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

/// Reads what is available now and returns its length. Then other tasks run.
pub(in crate::net) async fn read_now(client: &mut TlsStream<TcpStream>, bytes: &mut [u8]) -> usize {
    let mut buffer = ReadBuf::new(bytes);
    let read = poll_fn(|cx| Poll::Ready(Pin::new(&mut *client).poll_read(cx, &mut buffer)));
    let _ = read.await.is_ready();
    let read = buffer.filled().len();
    drive_io().await;
    read
}
