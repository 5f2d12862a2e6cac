//! Tests that lines and HTTP requests refuse the same things, and record them alike.

use std::fs;

use serde_json::Value;
use tempfile::TempDir;

use super::*;
use crate::access::{AccessConfig, Credential, PermissionSet, Principal, TokenHash, new_token};
use crate::audit::AuditConfig;
use crate::quota::{Quantity, Quota, QuotaConfig};
use crate::{BrokerConfig, HttpConfig};

/// A broker with an audit log, and the token of its principal.
async fn start_with_alice(
    folder: &TempDir,
    permissions: &[&str],
    limits: &[(Quantity, u64)],
) -> (Broker, String) {
    let listen = "127.0.0.1:0".parse().unwrap();
    let token = new_token();
    let allow = permissions.iter().map(|permission| permission.parse().unwrap()).collect();
    let credential = Credential::Token(TokenHash::of(&token));
    let alice = Principal::new("alice", credential, PermissionSet::new(allow, Vec::new()));
    let principal =
        limits.iter().fold(Quota::UNLIMITED, |quota, (quantity, max)| quota.with(*quantity, *max));
    let config = BrokerConfig {
        listen,
        http: Some(HttpConfig { listen, ..HttpConfig::default() }),
        access: AccessConfig { principals: Some(vec![alice]), ..AccessConfig::default() },
        quotas: QuotaConfig { principal, ..QuotaConfig::default() },
        audit: Some(AuditConfig::File(folder.path().join("audit"))),
        ..BrokerConfig::default()
    };
    (Broker::start(config).await.unwrap(), token.secret().to_owned())
}

/// The status of the response to a request, such as `GET /topics`.
async fn http_status(broker: &Broker, token: &str, request: &str, body: &str) -> u16 {
    let mut stream = TcpStream::connect(broker.http_addr().unwrap()).await.unwrap();
    let head = format!(
        "{request} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut status_line = String::new();
    BufReader::new(stream).read_line(&mut status_line).await.unwrap();
    status_line.split(' ').nth(1).unwrap().parse().unwrap()
}

#[tokio::test]
async fn lines_and_http_refuse_and_record_alike() {
    let folder = tempfile::tempdir().unwrap();
    let permissions = ["pub:docs-*", "sub:*", "group:crawlers"];
    let limits = [(Quantity::Topics, 1), (Quantity::Subscriptions, 1), (Quantity::Credit, 1)];
    let (broker, token) = start_with_alice(&folder, &permissions, &limits).await;
    let mut client = TestConnection::connect_greeted(&broker).await;
    assert!(client.request(&format!("HELLO token={token}")).await.starts_with("+OK "));
    // A denied event counts no topic.
    let denied = [
        ("PUB other x", "POST /topics/other", "x", Some("other")),
        ("PUB docs-9 /a every=1h", "POST /topics/docs-8", "/a every=1h", None),
        ("TOPIC delete docs-1", "DELETE /topics/docs-1", "", Some("docs-1")),
        ("STATS", "GET /stats", "", None),
    ];
    for (line, request, body, _) in denied {
        let answer = client.request(line).await;
        assert!(answer.starts_with("-ERR denied "), "{line}: {answer}");
        assert_eq!(http_status(&broker, &token, request, body).await, 403, "{request}");
    }
    assert_eq!(client.request("PUB docs-1 x").await, "+OK 1 3\r\n");
    assert_eq!(client.request("SUB docs-1").await, "+OK\r\n");
    let limited = [
        ("PUB docs-2 x", Some("POST /topics/docs-2"), "topics that it created"),
        ("SUB new-url", Some("GET /topics/new-url/events"), "subscriptions"),
        ("JOIN crawlers credit=2", None, "credit"),
    ];
    for (line, request, _) in limited {
        let answer = client.request(line).await;
        assert!(answer.starts_with("-ERR limit "), "{line}: {answer}");
        if let Some(request) = request {
            assert_eq!(http_status(&broker, &token, request, "x").await, 429, "{request}");
        }
    }
    broker.stop().await;
    let records = fs::read_to_string(folder.path().join("audit")).unwrap();
    let records: Vec<Value> = records.lines().map(|it| serde_json::from_str(it).unwrap()).collect();
    let count = |what: &str, way: &str, matches: &dyn Fn(&Value) -> bool| {
        let is_such = |it: &&Value| it["what"] == what && it["way"] == way && it["who"] == "alice";
        records.iter().filter(is_such).filter(|it| matches(it)).count()
    };
    for way in ["line", "http"] {
        assert_eq!(count("denied", way, &|_| true), denied.len(), "{way}: {records:#?}");
        for topic in denied.into_iter().filter_map(|(_, _, _, topic)| topic) {
            assert_eq!(count("denied", way, &|it| it["topic"] == topic), 1, "{way}: {topic}");
        }
        for (_, request, quota) in limited {
            let names_it = |it: &Value| it["why"].as_str().unwrap().contains(quota);
            let expected = usize::from(way == "line" || request.is_some());
            assert_eq!(count("limit", way, &names_it), expected, "{way}: {quota}: {records:#?}");
        }
    }
}

// PROTOCOL: S19
#[tokio::test]
async fn a_login_over_the_quota_takes_no_member_over() {
    let folder = tempfile::tempdir().unwrap();
    let (broker, token) = start_with_alice(&folder, &[], &[(Quantity::Connections, 1)]).await;
    let mut first = TestConnection::connect_greeted(&broker).await;
    let hello = first.request(&format!("HELLO token={token}")).await;
    let resume = hello.split_ascii_whitespace().find(|word| word.starts_with("resume=")).unwrap();
    let mut second = TestConnection::connect_greeted(&broker).await;
    let rejected = second.request(&format!("HELLO token={token} {resume}")).await;
    assert!(rejected.starts_with("-ERR limit alice "), "{rejected}");
    assert!(first.request("PING").await.starts_with("PONG "));
    broker.stop().await;
    let records = fs::read_to_string(folder.path().join("audit")).unwrap();
    assert!(records.contains(r#""what":"limit""#), "{records}");
}
