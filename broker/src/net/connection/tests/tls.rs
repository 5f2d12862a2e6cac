//! Tests of TLS: handshakes, and writes to a client that does not read.
#![expect(clippy::disallowed_methods, reason = "serves a connection")]

use std::sync::Arc;

use rcgen::{CertificateParams, KeyPair};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::ServerName;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use tempfile::TempDir;
use tokio::io::{ReadHalf, WriteHalf};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::tls_pair::{read_now, tls_pair};
use super::*;
use crate::TlsConfig;
use crate::mailbox::{ConnMessage, GroupBatch};

/// A broker with TLS, and a connector that trusts its certificate.
async fn start_tls_broker(limits: Limits) -> (Broker, TlsConnector, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let certificate = params.self_signed(&key).unwrap();
    let (cert_file, key_file) = (dir.path().join("cert"), dir.path().join("key"));
    std::fs::write(&cert_file, certificate.pem()).unwrap();
    std::fs::write(&key_file, key.serialize_pem()).unwrap();
    let tls = Some(TlsConfig { cert: cert_file, key: key_file, client_ca: None, client_crl: None });
    let listen = "127.0.0.1:0".parse().unwrap();
    let config = BrokerConfig { listen, tls, limits, ..BrokerConfig::default() };
    let mut roots = RootCertStore::empty();
    let pem = certificate.pem();
    roots.add(rustls::pki_types::CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()).unwrap();
    let client = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    (Broker::start(config).await.unwrap(), TlsConnector::from(Arc::new(client)), dir)
}

type TlsClient = (BufReader<ReadHalf<TlsStream<TcpStream>>>, WriteHalf<TlsStream<TcpStream>>);

async fn connect_tls(broker: &Broker, connector: &TlsConnector) -> TlsClient {
    let stream = TcpStream::connect(broker.local_addr()).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let (read, write) = tokio::io::split(connector.connect(name, stream).await.unwrap());
    (BufReader::new(read), write)
}

async fn next_line(read: &mut (impl AsyncBufReadExt + Unpin)) -> String {
    let mut line = String::new();
    let reading = async { read.read_line(&mut line).await.map(drop).unwrap() };
    assert!(completes_within(TEST_LIMIT, reading).await, "no line arrived");
    line
}

#[tokio::test]
async fn a_handshake_that_stalls_counts_and_is_closed() {
    let limits = Limits { handshake_timeout_ms: 50, connections_max: 1, ..Limits::default() };
    let (broker, connector, _dir) = start_tls_broker(limits).await;
    for sent in [&b""[..], b"\x16\x03\x01\x02\x00"] {
        let mut stalled = TcpStream::connect(broker.local_addr()).await.unwrap();
        stalled.write_all(sent).await.unwrap();
        let mut received = Vec::new();
        let end = async { stalled.read_to_end(&mut received).await.map(drop).unwrap() };
        assert!(completes_within(TEST_LIMIT, end).await, "the connection was not closed");
        assert_eq!(received, b"");
    }
    let (mut read, _write) = connect_tls(&broker, &connector).await;
    assert!(
        next_line(&mut read).await.starts_with("Connected."),
        "the stalled handshakes have ended"
    );
    let mut refused = TcpStream::connect(broker.local_addr()).await.unwrap();
    let closed = async { refused.read_to_end(&mut Vec::new()).await.map(drop).unwrap_or_default() };
    assert!(completes_within(TEST_LIMIT, closed).await, "the limit is one connection");
    broker.stop().await;
}

/// Sends the beginning of a hello of 65,000 bytes, which TLS can only process as a whole.
#[tokio::test]
async fn input_over_the_handshake_limit_closes_the_connection() {
    let limits = Limits { handshake_timeout_ms: 3_600_000, ..Limits::default() };
    let (broker, _, _dir) = start_tls_broker(limits).await;
    let mut endless = TcpStream::connect(broker.local_addr()).await.unwrap();
    let mut hello = Vec::new();
    for part in 0..4 {
        hello.extend([0x16, 3, 1, 0x3a, 0x98]);
        let start: &[u8] = if part == 0 { &[1, 0, 0xfd, 0xe8] } else { &[0; 4] };
        hello.extend(start.iter().chain(&[0; 14_996]));
    }
    // The broker may close before everything is written.
    let _ = endless.write_all(&hello).await;
    let end = async { _ = endless.read_to_end(&mut Vec::new()).await };
    assert!(completes_within(TEST_LIMIT, end).await, "the connection was not closed");
    broker.stop().await;
}

#[tokio::test]
async fn stalled_handshakes_delay_neither_other_clients_nor_a_stop() {
    let limits = Limits { handshake_timeout_ms: 3_600_000, ..Limits::default() };
    let (broker, connector, _dir) = start_tls_broker(limits).await;
    let mut stalled = Vec::new();
    for _ in 0..50 {
        stalled.push(TcpStream::connect(broker.local_addr()).await.unwrap());
    }
    let (mut read, mut write) = connect_tls(&broker, &connector).await;
    write.write_all(b"HELLO echo=me\n").await.unwrap();
    write.flush().await.unwrap();
    while !next_line(&mut read).await.contains(" echo=me ") {}
    let shared = broker.shared.clone();
    let stopped = async { broker.stop().await };
    assert!(completes_within(TEST_LIMIT, stopped).await);
    assert!(shared.registry.counts().iter().all(|(_, counts)| counts.open == 0));
}

#[tokio::test]
async fn a_client_that_reads_late_receives_everything_in_order() {
    let (broker, connector, _dir) = start_tls_broker(Limits::default()).await;
    let (mut read, mut write) = connect_tls(&broker, &connector).await;
    let big = broker.shared.topics.open(&"big".parse().unwrap()).unwrap();
    let payload = "x".repeat(10_000);
    let append = |count: u64| {
        for _ in 0..count {
            big.append(ConnId::BROKER, [payload.as_str()]).unwrap();
        }
    };
    append(1_000);
    write.write_all(b"HELLO echo=me\nSUB big from=first\nPING\n").await.unwrap();
    write.flush().await.unwrap();
    while !next_line(&mut read).await.contains(" echo=me ") {}
    // Much more than the sockets hold, so writing stalls in the middle of a record.
    for seq in 1..=1_000_u64 {
        let mut event = next_line(&mut read).await;
        while !event.starts_with("MSG ") {
            event = next_line(&mut read).await;
        }
        assert_eq!(event.len(), format!("MSG big {seq} \r\n").len() + payload.len());
        assert!(event.starts_with(&format!("MSG big {seq} x")), "{seq}");
    }
    // Output that fits into the socket's buffer, but not into one record, is sent without
    // another wake-up.
    append(3);
    for seq in 1_001..=1_003 {
        assert!(next_line(&mut read).await.starts_with(&format!("MSG big {seq} x")));
    }
    write.shutdown().await.unwrap();
    let mut rest = String::new();
    let end = async { read.read_to_string(&mut rest).await.map(drop).unwrap() };
    assert!(completes_within(TEST_LIMIT, end).await, "the connection was not closed");
    broker.stop().await;
}

#[tokio::test]
async fn a_worker_that_reads_its_tasks_slowly_but_steadily_stays_connected() {
    const TASKS: [usize; 2] = [512 << 10, 1 << 10];
    let limits = Limits { task_bytes_max: 0, stalled_ms: 1_000, ..Limits::default() };
    let broker = start_broker(limits).await;
    let (stream, mut client) = tls_pair().await;
    let peer = crate::remote::PeerAddr::Tcp(broker.local_addr());
    let remote = RemoteInfo { peer, certificate: None, is_encrypted: true };
    let connection = new_connection(&broker, stream, remote);
    let mailbox = connection.mailbox.clone();
    let connection = tokio::spawn(connection.run());
    tokio::time::pause();
    let (mut received, mut bytes) = (0, vec![0; 16 << 10]);
    // The second waits until all of the first is written, and exceeds the limit.
    for tasks in TASKS {
        let mut batch = GroupBatch::default();
        batch.tasks.resize(tasks, b'x');
        mailbox.send(ConnMessage::Group(batch));
        received += read_now(&mut client, &mut bytes).await;
    }
    while received < TASKS.iter().sum() {
        // More than the sockets hold, and less than TLS encrypts at once.
        let round = received + (32 << 10);
        while received < round.min(TASKS.iter().sum()) {
            assert!(!connection.is_finished(), "the connection ended after {received} bytes");
            received += read_now(&mut client, &mut bytes).await;
        }
        tokio::time::advance(Duration::from_millis(600)).await;
    }
    tokio::time::resume();
    drop(client);
    broker.stop().await;
}
