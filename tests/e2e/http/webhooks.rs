//! Webhooks in the formats of forges and CMSs, sent by curl and signed by openssl.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use std::{fs, thread};

use serde_json::json;
use tempfile::TempDir;

use crate::support::nc::run_nc;
use crate::support::openssl::hmac;
use crate::support::origin::{Origin, Site, html_response};
use crate::support::process::{Process, Server, run_at, run_tidings, tidings_command};
use crate::support::wait::wait_until;
use crate::support::webhook_broker::{
    HOOK_SECRET, WebhookBroker, github_hook, hmac_base64, unix_seconds, write_config,
};

/// Requests in the order of the hooks in the configuration; their events have the same order.
// PROTOCOL: W4
#[test]
#[ignore = "needs foreign programs"]
fn every_signature_scheme_is_accepted() {
    let mut config = String::new();
    for (signature, url) in [
        ("github", "{ pointer = '/head_commit/url' }"),
        ("gitea", "{ pointer = '/release/html_url' }"),
        ("gitlab", "{ pointer = '/commits/*/url' }"),
        ("woocommerce", "{ pointer = '/permalink' }"),
        ("ghost", "{ pointer = '/post/current/url' }"),
        ("slack", "{ field = 'text' }"),
        ("stripe", "{ header = 'X-Page' }"),
    ] {
        let hook = format!(
            "[[hook]]\nname = '{signature}'\nsecret-file = 'SECRETS'\nsignature = '{signature}'\n\
             url = {url}\nprefixes = ['https://{signature}.example/']\n\
             attributes = {{ source = '{signature}', prio = 5 }}\n"
        );
        config += &hook;
    }
    config += "[[hook]]\nname = 'standard'\nsecret-file = 'standard'\nsignature = \
               'standard-webhooks'\nurl = { pointer = '/data/url' }\nprefixes = \
               ['https://standard.example/']\ntopic = 'news'\n\
               [[hook]]\nname = 'own'\nsecret-file = 'SECRETS'\nurl = { pointer = '/u' }\n\
               prefixes = ['https://own.example/']\n\
               [hook.signature]\nheader = 'X-Own'\nprefix = 'mac '\nencoding = 'base64'\n\
               signs = 'own:{timestamp}:{body}'\ntimestamp = 'X-Own-Time'\ntolerance = '1m'\n";
    // Attributes that the configuration of a hook sets need no grant for HTTP.
    let hooked = WebhookBroker::start(&["broker", "--grant", "http="], &config);
    let (time, json) = (unix_seconds(), "application/json");

    let body = r#"{"ref":"refs/heads/main","head_commit":{"id":"7fd1","url":"https://github.example/o/r/commit/7fd1"},"repository":{"html_url":"https://github.example/o/r"}}"#;
    hooked.post_signed("github", body).seqs();
    let form = "payload=%7B%22head_commit%22%3A%7B%22url%22%3A%22https%3A%2F%2Fgithub.example%2Fform%22%7D%7D";
    let signature = format!("X-Hub-Signature-256: sha256={}", hmac("sha256", HOOK_SECRET, form));
    hooked.post("github", "application/x-www-form-urlencoded", &[&signature], form).seqs();
    let ping = r#"{"zen":"Keep it logically awesome.","hook_id":1}"#;
    assert_eq!(hooked.post_signed("github", ping).seqs(), json!([]));

    let body = r#"{"action":"published","release":{"id":1,"html_url":"https://gitea.example/o/r/releases/tag/v1"}}"#;
    let signature = format!("X-Gitea-Signature: {}", hmac("sha256", HOOK_SECRET, body));
    hooked.post("gitea", json, &[&signature], body).seqs();

    let body = r#"{"object_kind":"push","commits":[{"id":"a","url":"https://gitlab.example/a"},{"id":"b","url":"https://gitlab.example/b"}]}"#;
    let taken = hooked.post("gitlab", json, &[&format!("X-Gitlab-Token: {HOOK_SECRET}")], body);
    assert_eq!(taken.seqs().as_array().unwrap().len(), 2);

    let body = r#"{"id":7,"name":"Hat","permalink":"https://woocommerce.example/product/hat/"}"#;
    let signature = format!("X-WC-Webhook-Signature: {}", hmac_base64(HOOK_SECRET, body));
    hooked.post("woocommerce", json, &[&signature], body).seqs();

    let body = r#"{"event":"post.published","post":{"current":{"url":"https://ghost.example/hello/"},"previous":{}}}"#;
    let signed = hmac("sha256", HOOK_SECRET, &format!("{body}{time}000"));
    let signature = format!("X-Ghost-Signature: sha256={signed}, t={time}000");
    hooked.post("ghost", json, &[&signature], body).seqs();

    let body = "command=%2Ffetch&text=https%3A%2F%2Fslack.example%2Fx";
    let signature = format!(
        "X-Slack-Signature: v0={}",
        hmac("sha256", HOOK_SECRET, &format!("v0:{time}:{body}"))
    );
    let headers = [&*signature, &format!("X-Slack-Request-Timestamp: {time}")];
    hooked.post("slack", "application/x-www-form-urlencoded", &headers, body).seqs();

    let signed = hmac("sha256", HOOK_SECRET, &format!("{time}.{{}}"));
    let signature = format!("Stripe-Signature: t={time},v1={signed},v0=00");
    let headers = [&*signature, "X-Page: https://stripe.example/receipt"];
    hooked.post("stripe", json, &headers, "{}").seqs();

    let body = r#"{"type":"page.updated","data":{"url":"https://standard.example/p"}}"#;
    let signed = hmac_base64(HOOK_SECRET, &format!("msg_1.{time}.{body}"));
    let headers = [
        "webhook-id: msg_1",
        &format!("webhook-timestamp: {time}"),
        &format!("webhook-signature: v1,AAAA v1,{signed}"),
    ];
    hooked.post("standard", json, &headers, body).seqs();

    let body = r#"{"u":"https://own.example/"}"#;
    let signature =
        format!("X-Own: mac {}", hmac_base64(HOOK_SECRET, &format!("own:{time}:{body}")));
    hooked.post("own", json, &[&signature, &format!("X-Own-Time: {time}")], body).seqs();

    let expected = [
        "https://github.example/o/r/commit/7fd1 prio=5 source=github id=github-",
        "https://github.example/form prio=5 source=github id=github-",
        "https://gitea.example/o/r/releases/tag/v1 prio=5 source=gitea id=gitea-",
        "https://gitlab.example/a prio=5 source=gitlab id=gitlab-",
        "https://gitlab.example/b prio=5 source=gitlab id=gitlab-",
        "https://woocommerce.example/product/hat/ prio=5 source=woocommerce id=woocommerce-",
        "https://ghost.example/hello/ prio=5 source=ghost id=ghost-",
        "https://slack.example/x prio=5 source=slack id=slack-",
        "https://stripe.example/receipt prio=5 source=stripe id=stripe-",
        "https://own.example/ id=own-",
    ];
    let events = hooked.http.events("new-url");
    assert_eq!(events.len(), expected.len(), "{events:#?}");
    for (event, expected) in events.iter().zip(expected) {
        assert!(event.starts_with(expected), "{event}");
    }
    assert!(hooked.http.events("news")[0].starts_with("https://standard.example/p id=standard-"));
    assert_eq!(hooked.hook_counts(), json!({ "taken": 11, "refused": 0, "limited": 0 }));
}

// PROTOCOL: W7
#[test]
#[ignore = "needs foreign programs"]
fn a_webhook_without_a_signature_is_accepted_from_its_senders() {
    let open = |name: &str, senders: &str| {
        let hook = github_hook(name, &format!("senders = ['{senders}']"));
        hook.replace("'github'", "'none'").replace("secret-file = 'SECRETS'\n", "")
    };
    let config = open("near", "127.0.0.0/8") + &open("far", "192.0.2.0/24");
    let hooked = WebhookBroker::start(&["broker"], &config);
    let post = |hook: &str, url: &str| {
        let body = json!({ "urls": [url] }).to_string();
        hooked.post(hook, "application/json", &[], &body)
    };
    let (url, other) = ("https://blog.example/posts/1", "https://other.example/posts/1");
    assert_ne!(post("near", url).seqs(), post("near", url).seqs(), "each ping is an event");
    assert_eq!(post("near", other).status, 422);
    assert_eq!(post("far", url).status, 404);
    assert_eq!(hooked.http.events("new-url"), [url; 2]);
}

// PROTOCOL: W1
#[test]
#[ignore = "needs foreign programs"]
fn unsigned_requests_get_the_same_answer_and_are_counted() {
    let config = github_hook("forge", "")
        + &github_hook("far", "senders = ['192.0.2.0/24', '2001:db8::/32']");
    let config = config + &github_hook("near", "senders = ['192.0.2.0/24', '127.0.0.0/8']");
    let hooked = WebhookBroker::start(&["broker"], &config);
    let body = r#"{"urls":["https://blog.example/posts/GUESSED"]}"#;
    let (good, sha256) = (hmac("sha256", HOOK_SECRET, body), "X-Hub-Signature-256: sha256=");
    let sha1 = hmac("sha1", HOOK_SECRET, body);
    let other = hmac("sha256", "another secret", body);
    let mut answers = Vec::new();
    for (hook, headers) in [
        ("none", vec![format!("{sha256}{good}")]),
        ("forge%0aGUESSED%1b[31m", vec![format!("{sha256}{good}")]),
        ("far", vec![format!("{sha256}{good}")]),
        // Any client can send this header.
        ("far", vec![format!("{sha256}{good}"), "X-Forwarded-For: 192.0.2.1".to_owned()]),
        ("forge", vec![]),
        ("forge", vec![format!("{sha256}{other}")]),
        ("forge", vec![format!("{sha256}{}", &good[..62])]),
        ("forge", vec![format!("{sha256}{good}00")]),
        ("forge", vec![format!("{sha256};")]),
        ("forge", vec![format!("X-Hub-Signature-256: {good}")]),
        ("forge", vec![format!("X-Hub-Signature-256: sha1={sha1}")]),
        ("forge", vec![format!("X-Hub-Signature: sha1={sha1}")]),
        ("forge", vec![format!("{sha256}{good}"), format!("{sha256}{good}")]),
        ("forge", vec![format!("Authorization: Bearer {HOOK_SECRET}")]),
    ] {
        let headers: Vec<&str> = headers.iter().map(String::as_str).collect();
        answers.push(hooked.post(hook, "application/json", &headers, body));
    }
    for kind in ["text/plain", "image/png", "nonsense"] {
        answers.push(hooked.post("forge", kind, &[], "{ no json"));
        answers.push(hooked.post("none", kind, &[], "{ no json"));
    }
    // A body other than the signed one.
    let signature = format!("{sha256}{good}");
    answers.push(hooked.post("forge", "application/json", &[&signature], &format!("{body}\n")));
    for answer in &answers {
        assert_eq!((answer.status, &answer.body), (answers[0].status, &answers[0].body));
    }
    assert_eq!(answers[0].status, 404);
    assert_eq!(answers[0].json()["code"], "unknown");
    let counts = json!({ "taken": 0, "refused": answers.len(), "limited": 0 });
    assert_eq!(hooked.hook_counts(), counts);
    assert_eq!(hooked.http.events("new-url"), [""; 0]);
    hooked.post_signed("forge", body).seqs();
    hooked.post_signed("near", body).seqs();
    let output = hooked.server.process.signal_and_finish("TERM").expect_code(0);
    let output = format!("{}{}", output.stdout().join("\n"), output.stderr());
    for (hook, reason) in [
        ("none", "there is no hook of this name"),
        ("far", "the address is none of the hook's senders"),
        ("forge", "is missing, occurs twice or is not ASCII"),
        ("forge", "has no signature of the form"),
        ("forge", "does not match this body and this secret"),
    ] {
        let is_it =
            |line: &str| line.contains(&format!("hook=\"{hook}\"")) && line.contains(reason);
        assert!(output.lines().any(is_it), "{hook}, {reason}: {output}");
    }
    for hidden in ["GUESSED", "\u{1b}[31m", HOOK_SECRET, &good] {
        assert!(!output.contains(hidden), "{output}");
    }
}

// PROTOCOL: W5
#[test]
#[ignore = "needs foreign programs"]
fn a_repeated_webhook_gets_the_same_answer_and_is_published_once() {
    let config = github_hook("blog", "") + &github_hook("again", "repeats = true");
    let hooked = WebhookBroker::start(&["broker"], &config);
    let body = r#"{"urls":["https://blog.example/posts/1","https://blog.example/posts/2"]}"#;
    let seqs = hooked.post_signed("blog", body).seqs();
    thread::scope(|scope| {
        let again: Vec<_> =
            (0..4).map(|_| scope.spawn(|| hooked.post_signed("blog", body))).collect();
        for again in again {
            assert_eq!(again.join().unwrap().seqs(), seqs);
        }
    });
    let other = r#"{"urls":["https://blog.example/posts/1"]}"#;
    assert_ne!(
        hooked.post_signed("blog", other).seqs()[0],
        seqs[0],
        "another body gets other seqs"
    );
    let hooked =
        WebhookBroker::new(hooked.server.restart("KILL", &["broker", "--config", "hooks.toml"]));
    assert_eq!(hooked.post_signed("blog", body).seqs(), seqs, "after a crash");
    let once = hooked.post_signed("again", other).seqs();
    assert_ne!(hooked.post_signed("again", other).seqs(), once, "`repeats = true` publishes again");
    let events = hooked.http.events("new-url");
    assert_eq!(events.len(), 5, "{events:#?}");
}

// PROTOCOL: W2
#[test]
#[ignore = "needs foreign programs"]
fn an_expired_signature_is_rejected() {
    let config = github_hook("old", "").replace("'github'", "'slack'");
    let hooked = WebhookBroker::start(&["broker"], &config);
    let body = r#"{"urls":["https://blog.example/posts/1"]}"#;
    let time: u64 = unix_seconds().parse().unwrap();
    for (time, status) in [(time, 200), (time - 600, 404), (time + 600, 404)] {
        let signed = hmac("sha256", HOOK_SECRET, &format!("v0:{time}:{body}"));
        let headers = [
            &*format!("X-Slack-Signature: v0={signed}"),
            &format!("X-Slack-Request-Timestamp: {time}"),
        ];
        let answer = hooked.post("old", "application/json", &headers, body);
        assert_eq!(answer.status, status, "{answer:?}");
    }
}

#[test]
#[ignore = "needs foreign programs"]
fn webhooks_are_rate_limited_by_source_and_hook() {
    let config = github_hook("slow", "rate = 1\nburst = 3") + &github_hook("fast", "");
    let hooked = WebhookBroker::start(&["broker"], &config);
    let body = r#"{"urls":["https://blog.example/posts/1"]}"#;
    for _ in 0..3 {
        hooked.post_signed("slow", body).seqs();
    }
    let limited = hooked.post_signed("slow", body);
    assert_eq!((limited.status, &limited.json()["code"]), (429, &json!("limit")), "{limited:?}");
    let seconds: u64 = limited.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=60).contains(&seconds), "{limited:?}");
    // The response to an unsigned request does not show the limit.
    assert_eq!(hooked.post("slow", "text/plain", &[], "x").status, 404);
    hooked.post_signed("fast", body).seqs();
    let signature = format!("X-Hub-Signature-256: sha256={}", hmac("sha256", HOOK_SECRET, body));
    let from_elsewhere = ["--interface", "127.0.0.2", "--header", &signature, "--header"];
    let arguments = [&from_elsewhere[..], &["Content-Type: application/json", "--data", body]];
    hooked.http.request("POST", "/hooks/slow", &arguments.concat()).seqs();
    assert_eq!(hooked.hook_counts(), json!({ "taken": 5, "refused": 1, "limited": 1 }));
    // Unsigned requests share one limit, whether the hook exists or not.
    let name = |n: u32| if n.is_multiple_of(2) { "fast".to_owned() } else { format!("none-{n}") };
    let answers = (0..1_000).map(|n| hooked.post(&name(n), "text/plain", &[], "").status);
    let accepted = answers.take_while(|status| *status == 404).count();
    assert!((59..1_000).contains(&accepted), "{accepted}");
    for hook in ["fast", "slow", "none"] {
        // The limit allows one request a second.
        let mut statuses = (0..100).map(|_| hooked.post(hook, "text/plain", &[], "").status);
        assert!(statuses.any(|status| status == 429), "{hook}");
    }
    // Signed requests through the same proxy are accepted.
    for n in 0..5 {
        let body = format!(r#"{{"urls":["https://blog.example/posts/flood-{n}"]}}"#);
        hooked.post_signed("fast", &body).seqs();
    }
}

/// Sends a body of 4 MiB: all but its end at once, then byte by byte. Repeats this until `stop`,
/// and counts the large writes in `begun`.
fn send_slowly(address: &str, hook: &str, begun: &AtomicUsize, stop: &AtomicBool) {
    const BYTES: usize = 4 << 20;
    while !stop.load(Ordering::Relaxed) {
        let Ok(mut stream) = TcpStream::connect(address) else { continue };
        let head = format!(
            "POST /hooks/{hook} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {BYTES}\r\n\r\n"
        );
        let body = vec![b'x'; BYTES - 1_000];
        let is_taken = stream.write_all(head.as_bytes()).and(stream.write_all(&body)).is_ok();
        begun.fetch_add(usize::from(is_taken), Ordering::Relaxed);
        // Sends a byte when no response has arrived in this time.
        stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        while is_taken && !stop.load(Ordering::Relaxed) {
            let answer = stream.read(&mut [0]);
            let is_silent = answer.is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
            if !is_silent || stream.write_all(b"x").is_err() {
                break;
            }
        }
    }
}

#[test]
#[ignore = "needs foreign programs"]
fn slow_senders_do_not_block_signed_webhooks() {
    let hooked = WebhookBroker::start(&["broker"], &github_hook("blog", ""));
    for hook in ["none", "blog"] {
        let (stop, begun) = (AtomicBool::new(false), AtomicUsize::new(0));
        let address = hooked.http.authority();
        let statuses: Vec<_> = thread::scope(|scope| {
            for _ in 0..6 {
                scope.spawn(|| send_slowly(address, hook, &begun, &stop));
            }
            // The buffer holds four such bodies.
            wait_until("bodies that fill the buffer", || {
                (begun.load(Ordering::Relaxed) >= 4).then_some(())
            });
            let signed = (0..20).map(|n| {
                let body = json!({ "urls": [format!("https://blog.example/posts/{hook}-{n}")] });
                hooked.post_signed("blog", &body.to_string()).status
            });
            let statuses = signed.collect();
            stop.store(true, Ordering::Relaxed);
            statuses
        });
        assert_eq!(statuses, [200; 20], "{hook}");
    }
}

#[test]
#[ignore = "needs foreign programs"]
fn all_webhooks_share_one_limit_that_spares_other_publishers() {
    let config = format!("hook-events = 1\n{}{}", github_hook("one", ""), github_hook("two", ""));
    let hooked = WebhookBroker::start(&["broker"], &config);
    let body = |from: usize| {
        let urls = (from..from + 100).map(|n| format!("https://blog.example/posts/{n}"));
        json!({ "urls": urls.collect::<Vec<_>>() }).to_string()
    };
    let seqs = hooked.post_signed("one", &body(0)).seqs();
    let limited = hooked.post_signed("two", &body(100));
    assert_eq!((limited.status, &limited.json()["code"]), (429, &json!("limit")), "{limited:?}");
    assert_eq!(
        hooked.post_signed("one", &body(0)).seqs(),
        seqs,
        "a repeated webhook costs nothing"
    );
    let posted = hooked.http.post_lines("/topics/new-url", "http://a.example/");
    assert_eq!(posted.seqs(), json!([101]));
}

// PROTOCOL: H10, W3
#[test]
#[ignore = "needs foreign programs"]
fn invalid_bodies_get_clear_errors() {
    let hooked = WebhookBroker::start(&["broker"], &github_hook("blog", ""));
    let fine = r#"{"urls":["https://blog.example/posts/1"]}"#;
    for (body, status, part) in [
        ("{", 400, "the body: EOF"),
        ("", 400, "the body: EOF"),
        (&*"[".repeat(100_000), 400, "recursion limit"),
        (&*format!("{{\"urls\":{}", "[".repeat(1_000_000)), 400, "recursion limit"),
        (
            &*json!({ "urls": (0..101).map(|n| n.to_string()).collect::<Vec<_>>() }).to_string(),
            422,
            "more than 100",
        ),
        (
            &*json!({ "urls": [format!("https://blog.example/posts/{}", "x".repeat(9_000))] })
                .to_string(),
            422,
            "longer than",
        ),
        ("{\"urls\":[\"https://blog.example/posts/\u{0}\"]}", 400, "control character"),
    ] {
        let answer = hooked.post_signed("blog", body);
        assert_eq!(answer.status, status, "{part}: {answer:?}");
        assert!(answer.json()["message"].as_str().unwrap().contains(part), "{answer:?}");
    }
    let long = " ".repeat(4 << 20) + fine;
    for hook in ["blog", "none"] {
        assert_eq!(hooked.post_signed(hook, &long).status, 413, "{hook}");
    }
    let signature = format!("X-Hub-Signature-256: sha256={}", hmac("sha256", HOOK_SECRET, fine));
    for kind in
        ["text/html", "multipart/form-data; boundary=x", "application/x-www-form-urlencoded"]
    {
        assert_eq!(hooked.post("blog", kind, &[&signature], fine).status, 415, "{kind}");
    }
    let coded = [&*signature, "Content-Encoding: gzip"];
    let unsupported = [
        hooked.post("blog", "application/json", &coded, fine),
        hooked.post("blog", "application/json; charset=utf-16", &[&signature], fine),
    ];
    assert_eq!(unsupported.map(|answer| answer.status), [415, 415]);
    let unsigned = hooked.post("blog", "application/json", &["Content-Encoding: gzip"], fine);
    assert_eq!(unsigned.status, 404, "unsigned requests get no details");
    assert_eq!(hooked.http.get("/hooks/blog").status, 405);
    assert_eq!(hooked.http.events("new-url"), [""; 0]);
    hooked.post_signed("blog", fine).seqs();
}

#[test]
#[ignore = "needs foreign programs"]
fn a_webhook_makes_the_crawler_fetch_a_page() {
    let origin = Origin::serve_with(Site::default(), |_| Some(html_response("<title>New</title>")));
    let config =
        github_hook("blog", "").replace("https://blog.example/posts/", &origin.url(0, "/"));
    let hooked = WebhookBroker::start(&["up", "--allow-private"], &config);
    hooked.post_signed("blog", &json!({ "urls": [origin.url(0, "/new")] }).to_string()).seqs();
    let was_fetched = |path: &str| origin.request_log().0.iter().any(|hit| hit.path == path);
    wait_until("the page", || was_fetched("/new").then_some(()));
}

#[test]
#[ignore = "needs foreign programs"]
fn hook_configuration_errors_prevent_the_start() {
    let words = ["broker", "--config", "hooks.toml", "--listen", "127.0.0.1:0"];
    for (config, part) in [
        (
            github_hook("blog", "").replace("SECRETS", "nowhere"),
            "the hook \"blog\": cannot read nowhere",
        ),
        (
            github_hook("blog", "").replace("-file = 'SECRETS'", "-env = 'NO_SUCH_NAME'"),
            "NO_SUCH_NAME",
        ),
        (github_hook("blog", "") + &github_hook("blog", ""), "two hooks have the name \"blog\""),
        (github_hook("blog", "http = 3"), "hooks.toml:7:1: `hook`: unknown field `http`"),
        (
            github_hook("blog", "") + &github_hook("b/c", ""),
            "hooks.toml:9:1: `hook`: the hook \"b/c\": `name` must be",
        ),
        ("[hook]\nname = 'x'".to_owned(), "write [[hook]]"),
    ] {
        let folder = TempDir::new().unwrap();
        write_config(folder.path(), &config);
        run_tidings(folder.path(), &words).expect_code(2).expect_stderr(part);
    }
    let folder = TempDir::new().unwrap();
    write_config(folder.path(), &github_hook("blog", ""));
    run_tidings(folder.path(), &[&words[..], &["--http", "off"]].concat())
        .expect_code(2)
        .expect_stderr("[[hook]] needs HTTP, which is off");
    // A client of a broker needs no secret.
    let server = Server::start_broker();
    write_config(server.folder.path(), &github_hook("blog", "").replace("SECRETS", "nowhere"));
    run_nc(server.address, "http://a.example/\n");
    run_at(&server, &["topic", "ls", "--config", "hooks.toml"]).expect_code(0);
}

#[test]
#[ignore = "needs foreign programs"]
fn the_documented_example_is_valid() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/webhooks.md");
    let page = fs::read_to_string(page).unwrap();
    let blocks = page.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next());
    let example = blocks.filter(|block| block.contains("[[hook]]")).collect::<String>();
    let config = ["blog", "shop"].into_iter().fold(example, |config, name| {
        config.replace(&format!("/etc/tidings/{name}.secret"), "SECRETS")
    });
    let hooked = WebhookBroker::start(&["broker"], &config);
    let body = r#"{"changed":[{"url":"https://shop.example/products/1"}]}"#;
    let time = unix_seconds();
    let signature = hmac_base64(HOOK_SECRET, &format!("{time}.{body}"));
    let headers = [&*format!("X-Shop-Signature: mac={signature}"), &format!("X-Shop-Time: {time}")];
    hooked.post("shop", "application/json", &headers, body).seqs();
    assert_eq!(hooked.http.events("shop-changes").len(), 1);
    assert_eq!(hooked.post_signed("blog", body).status, 404, "URLs outside of the prefixes");
}

#[test]
#[ignore = "needs foreign programs"]
fn probe_signature_explains_a_mismatch() {
    let folder = TempDir::new().unwrap();
    let body = "{\"a\":\"\u{e4}\"}\r\n";
    let good = hmac("sha256", HOOK_SECRET, body);
    write_config(folder.path(), "");
    let probe_signature = |header: &str, words: &[&str], body: &str| {
        let words = [&["probe", "signature", header, "--key-file", "secret"], words].concat();
        let mut probe = Process::start(&mut tidings_command(folder.path(), words));
        probe.write(body);
        probe.finish().expect_code(0).stdout().join("\n")
    };
    assert_eq!(probe_signature(&format!("sha256={good}"), &[], body), "valid: 12 bytes of body");
    let output =
        probe_signature(&format!("sha256={}", hmac("sha256", HOOK_SECRET, "x")), &[], "x\n");
    assert!(output.contains("the signature fits the body without its line end"), "{output}");
    let signed = hmac("sha256", HOOK_SECRET, "v0:1:x");
    let words = ["--scheme", "slack", "--with-header", "X-Slack-Request-Timestamp: 1"];
    assert_eq!(probe_signature(&format!("v0={signed}"), &words, "x"), "valid: 1 bytes of body");
    assert!(
        probe_signature("v1=00", &[], "x").starts_with("not valid: the header has no signature")
    );
}
