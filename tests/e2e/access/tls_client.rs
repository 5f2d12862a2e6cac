//! Our client against servers that it must not trust, and at work for one that it trusts.

use std::net::TcpListener;
use std::path::Path;

use tempfile::TempDir;

use crate::support::origin::{Origin, Site};
use crate::support::process::{Running, Server, at, run, tidings};
use crate::support::tls::{Authority, expired, for_another, s_server};

/// What `tidings topic ls` says of a server.
#[track_caller]
fn refusal(folder: &Path, address: &str, flags: &[&str]) -> String {
    let words = ["topic", "ls", "--broker", address];
    run(folder, &[&words, flags].concat()).expect_code(1).stderr()
}

#[test]
fn a_server_that_cannot_be_trusted_is_told_nothing_and_the_reason_is_said() {
    let folder = TempDir::new().unwrap();
    let authority = Authority::new(folder.path(), "authority");
    let others = Authority::new(folder.path(), "others");
    authority.sign("good");
    authority.sign_with("late", expired);
    authority.sign_with("another", for_another);
    others.sign("foreign");
    let with = |name: &str| (authority.path(name, "pem"), authority.path(name, "key"));
    let ca = authority.file();
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
        let (server, address) = s_server(&["-cert", &cert, "-key", &key]);
        let said = refusal(folder.path(), &address.to_string(), &["--ca", ca]);
        assert!(said.contains(reason), "{name}: {said}");
        assert!(said.contains(&format!("no secure connection to {address}: ")), "{said}");
        assert!(!server.has_printed("HELLO"));
    }
}

#[test]
fn a_server_whose_certificate_was_revoked_is_told_nothing() {
    let folder = TempDir::new().unwrap();
    let authority = Authority::new(folder.path(), "authority");
    let others = Authority::new(folder.path(), "others");
    authority.sign("server");
    let (cert, key) = (authority.path("server", "pem"), authority.path("server", "key"));
    let (server, address) = s_server(&["-cert", &cert, "-key", &key]);
    let ca = authority.file();
    let says = |list: &str, reason: &str| {
        let said = refusal(folder.path(), &address.to_string(), &["--ca", &ca, "--crl", list]);
        assert!(said.contains(reason), "{said}");
    };
    says(&authority.revoke(&["server"], true), "the certificate was revoked (--crl)");
    says(&authority.revoke(&[], false), "the list of --crl is out of date");
    says(&others.revoke(&[], true), "--crl has no list of its authority");
    says(&ca, "contains no list of revoked certificates in PEM");
    assert!(!server.has_printed("HELLO"));
    // It is the list that keeps us away.
    let words = ["broker", "--tls-cert", &cert, "--tls-key", &key];
    let broker = Server::start(&words);
    let list = authority.revoke(&[], true);
    at(&broker, &["topic", "ls", "--ca", &ca, "--crl", &list]).expect_code(0);
}

#[test]
fn a_server_that_speaks_something_else_is_said_to() {
    let folder = TempDir::new().unwrap();
    let authority = Authority::new(folder.path(), "authority");
    authority.sign("good");
    let (cert, key, ca) =
        (authority.path("good", "pem"), authority.path("good", "key"), authority.file());
    let old = ["-cert", &cert, "-key", &key, "-tls1_1", "-cipher", "ALL:@SECLEVEL=0"];
    let (_server, address) = s_server(&old);
    let said = refusal(folder.path(), &address.to_string(), &["--ca", &ca]);
    assert!(said.contains("supports neither TLS 1.2 nor TLS 1.3"), "{said}");
    let plain = Server::broker();
    let said = refusal(folder.path(), &plain.text(), &["--ca", &ca]);
    assert!(said.contains("does not speak TLS; if it is the broker, leave --tls out"), "{said}");
    // It takes connections and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let said = refusal(folder.path(), &silent.local_addr().unwrap().to_string(), &["--ca", &ca]);
    assert!(said.contains("answered at") && said.contains("within 5000 ms"), "{said}");
    let said = refusal(folder.path(), &plain.text(), &["--ca", "none.pem"]);
    assert!(said.contains("cannot read none.pem: "), "{said}");
    let said = refusal(folder.path(), &plain.text(), &["--ca", &ca, "--cert", &cert]);
    assert!(said.contains("contains no private key in PEM (--cert-key)"), "{said}");
}

#[test]
fn a_node_with_tls_crawls_for_itself_and_with_others() {
    let site = Origin::serve(Site { pages: 3, ..Site::default() });
    let folder = TempDir::new().unwrap();
    let authority = Authority::new(folder.path(), "authority");
    authority.sign("broker");
    let ca = authority.file();
    let flags = ["up", "--tls-cert", "broker.pem", "--tls-key", "broker.key", "--allow-private"];
    let node = Server::start_in(folder, &flags, |_| ());
    node.process.line_with("broker.sock");
    // On the same data directory no flag says where the broker is.
    let crawl = ["crawl", &site.seeds()[0], "--depth", "1", "--json"];
    let job = run(node.folder.path(), &crawl).expect_code(0);
    assert!(job.stderr().contains("unix:"), "{}", job.stderr());
    assert!(site.hits() > 1);
    // Elsewhere they do, for all that talks to it.
    let elsewhere = TempDir::new().unwrap();
    let secure = ["--broker", &node.text(), "--ca", &ca];
    let start =
        |words: &[&str]| Running::start(&mut tidings(elsewhere.path(), [words, &secure].concat()));
    let crawler = start(&["crawl", "--allow-private", "--data", "."]);
    crawler.line_with("fetching for");
    let said = start(&["pub", "t", "within"]);
    said.finish().expect_code(0);
    let heard = start(&["sub", "t", "--from", "first", "--count", "1"]);
    heard.line_with("within");
    heard.finish().expect_code(0);
    crawler.finish_by("TERM").expect_code(0);
    node.process.finish_by("TERM").expect_code(0);
}
