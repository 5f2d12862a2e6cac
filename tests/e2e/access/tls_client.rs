//! The client over TLS: with servers that it must not trust, and with one that it trusts.

use std::net::TcpListener;
use std::path::Path;

use tempfile::TempDir;

use crate::support::openssl::openssl;
use crate::support::origin::{Origin, Site};
use crate::support::process::{Process, Server, run_at, run_tidings, tidings_command};
use crate::support::tls::{
    CertificateAuthority, make_expired, make_for_other_host, start_s_server,
};

/// The error of `tidings topic ls` with this server.
#[track_caller]
fn connection_error(folder: &Path, address: &str, flags: &[&str]) -> String {
    let words = ["topic", "ls", "--broker", address];
    run_tidings(folder, &[&words, flags].concat()).expect_code(1).stderr()
}

#[test]
#[ignore = "needs foreign programs"]
fn an_untrusted_server_receives_nothing_and_the_error_names_the_reason() {
    let folder = TempDir::new().unwrap();
    let authority = CertificateAuthority::new(folder.path(), "authority");
    let others = CertificateAuthority::new(folder.path(), "others");
    authority.sign("good");
    authority.sign_with("late", make_expired);
    authority.sign_with("another", make_for_other_host);
    others.sign("foreign");
    let with =
        |name: &str| (authority.signed_file(name, "pem"), authority.signed_file(name, "key"));
    let ca = authority.certificate_file();
    for (name, ca, reason) in [
        ("late", &ca, "the certificate expired on 2021-02-03T00:00:00Z"),
        ("another", &ca, "the certificate is for broker.example, not for 127.0.0.1"),
        (
            "foreign",
            &ca,
            "the certificate is not signed by a trusted authority; name its authority with --ca FILE",
        ),
        (
            "authority",
            &ca,
            "the broker uses the certificate of an authority (basicConstraints CA:TRUE)",
        ),
    ] {
        let (cert, key) = with(name);
        let (server, address) = start_s_server(&["-cert", &cert, "-key", &key]);
        let output = connection_error(folder.path(), &address.to_string(), &["--ca", ca]);
        assert!(output.contains(reason), "{name}: {output}");
        assert!(output.contains(&format!("no secure connection to {address}: ")), "{output}");
        assert!(!server.has_printed("HELLO"));
    }
}

#[test]
#[ignore = "needs foreign programs"]
fn a_certificate_of_version_1_is_named() {
    let folder = TempDir::new().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (key, request, cert) = (file("k.pem"), file("r.pem"), file("c.pem"));
    let new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
    let words = ["-subj", "/CN=a", "-keyout", &key, "-out", &request];
    openssl(&[&["req"], &new_key[..], &words].concat(), b"");
    openssl(&["x509", "-req", "-in", &request, "-signkey", &key, "-out", &cert], b"");
    let broker = ["config", "check"];
    let mut check = tidings_command(folder.path(), broker);
    let check = check.env("TIDINGS_TLS_CERT", &cert).env("TIDINGS_TLS_KEY", &key);
    let checked = Process::start(check).finish().expect_code(2).stderr();
    let flags = ["--ca", &cert, "--cert", &cert, "--cert-key", &key];
    let connected = connection_error(folder.path(), "127.0.0.1:1", &flags);
    let (server, address) = start_s_server(&["-cert", &cert, "-key", &key]);
    let handshake = connection_error(folder.path(), &address.to_string(), &["--ca", &cert]);
    drop(server);
    for output in [checked, connected, handshake] {
        assert!(output.contains("is X.509 version 1, and version 3 is needed"), "{output}");
    }
}

#[test]
#[ignore = "needs foreign programs"]
fn a_server_with_a_revoked_certificate_receives_nothing() {
    let folder = TempDir::new().unwrap();
    let authority = CertificateAuthority::new(folder.path(), "authority");
    let others = CertificateAuthority::new(folder.path(), "others");
    authority.sign("server");
    let (cert, key) =
        (authority.signed_file("server", "pem"), authority.signed_file("server", "key"));
    let (server, address) = start_s_server(&["-cert", &cert, "-key", &key]);
    let ca = authority.certificate_file();
    let expect_error = |list: &str, reason: &str| {
        let output =
            connection_error(folder.path(), &address.to_string(), &["--ca", &ca, "--crl", list]);
        assert!(output.contains(reason), "{output}");
    };
    expect_error(
        &authority.write_revocation_list(&["server"], true),
        "the certificate was revoked (--crl)",
    );
    expect_error(&authority.write_revocation_list(&[], false), "the list of --crl is out of date");
    expect_error(&others.write_revocation_list(&[], true), "--crl has no list of its authority");
    expect_error(&ca, "contains no list of revoked certificates in PEM");
    assert!(!server.has_printed("HELLO"));
    // Without the revocation the same options work.
    let words = ["broker", "--tls-cert", &cert, "--tls-key", &key];
    let broker = Server::start(&words);
    let list = authority.write_revocation_list(&[], true);
    run_at(&broker, &["topic", "ls", "--ca", &ca, "--crl", &list]).expect_code(0);
}

#[test]
#[ignore = "needs foreign programs"]
fn a_server_with_another_protocol_is_reported() {
    let folder = TempDir::new().unwrap();
    let authority = CertificateAuthority::new(folder.path(), "authority");
    authority.sign("good");
    let (cert, key, ca) = (
        authority.signed_file("good", "pem"),
        authority.signed_file("good", "key"),
        authority.certificate_file(),
    );
    let old = ["-cert", &cert, "-key", &key, "-tls1_1", "-cipher", "ALL:@SECLEVEL=0"];
    let (_server, address) = start_s_server(&old);
    let output = connection_error(folder.path(), &address.to_string(), &["--ca", &ca]);
    assert!(output.contains("supports neither TLS 1.2 nor TLS 1.3"), "{output}");
    let plain = Server::start_broker();
    let output = connection_error(folder.path(), &plain.address_text(), &["--ca", &ca]);
    assert!(
        output.contains("does not speak TLS; if it is the broker, leave --tls out"),
        "{output}"
    );
    // A listener that accepts connections and sends nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let output =
        connection_error(folder.path(), &silent.local_addr().unwrap().to_string(), &["--ca", &ca]);
    assert!(output.contains("answered at") && output.contains("within 5000 ms"), "{output}");
    let output = connection_error(folder.path(), &plain.address_text(), &["--ca", "none.pem"]);
    assert!(output.contains("cannot read none.pem: "), "{output}");
    let output =
        connection_error(folder.path(), &plain.address_text(), &["--ca", &ca, "--cert", &cert]);
    assert!(output.contains("contains no private key in PEM (--cert-key)"), "{output}");
}

#[test]
fn a_node_with_tls_serves_its_own_crawler_and_others() {
    let site = Origin::serve(Site { pages: 3, ..Site::default() });
    let folder = TempDir::new().unwrap();
    let authority = CertificateAuthority::new(folder.path(), "authority");
    authority.sign("broker");
    let ca = authority.certificate_file();
    let flags = ["up", "--tls-cert", "broker.pem", "--tls-key", "broker.key", "--allow-private"];
    let node = Server::start_in(folder, &flags, |_| ());
    node.process.wait_for_line_with("broker.sock");
    // On the same data directory, commands find the broker without flags.
    let crawl = ["crawl", &site.seed_urls()[0], "--depth", "1", "--json"];
    run_tidings(node.folder.path(), &crawl).expect_code(0).expect_stderr("unix:");
    assert!(site.request_count() > 1);
    // Elsewhere, all commands need the address and the authority.
    let elsewhere = TempDir::new().unwrap();
    let secure = ["--broker", &node.address_text(), "--ca", &ca];
    let start = |words: &[&str]| {
        Process::start(&mut tidings_command(elsewhere.path(), [words, &secure].concat()))
    };
    let crawler = start(&["crawl", "--allow-private", "--data", "."]);
    crawler.wait_for_line_with("fetching for");
    let output = start(&["pub", "t", "within"]);
    output.finish().expect_code(0);
    let subscriber = start(&["sub", "t", "--from", "first", "--count", "1"]);
    subscriber.wait_for_line_with("within");
    subscriber.finish().expect_code(0);
    crawler.signal_and_finish("TERM").expect_code(0);
    node.process.signal_and_finish("TERM").expect_code(0);
}
