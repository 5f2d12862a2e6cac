//! TLS listeners, with other programs as clients.

use std::fs;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::support::line_connection::{FAREWELL, LineConnection};
use crate::support::nc::start_nc;
use crate::support::process::{Process, Server, run_at, run_tidings, tidings_command};
use crate::support::tls::{
    CertificateAuthority, make_expired, make_nearly_expired, start_s_client, start_socat,
};
use crate::support::wait::wait_until;

/// A broker with a certificate of an authority, and that authority.
#[track_caller]
fn broker(flags: &[&str]) -> (Server, CertificateAuthority) {
    let folder = TempDir::new().unwrap();
    let authority = CertificateAuthority::new(folder.path(), "authority");
    authority.sign("broker");
    let secure = ["broker", "--tls-cert", "broker.pem", "--tls-key", "broker.key"];
    let server = Server::start_in(folder, &[&secure, flags].concat(), |command| {
        command.env("TIDINGS_LOG", "debug");
    });
    (server, authority)
}

/// The URL of HTTP.
#[track_caller]
fn https_url(server: &Server) -> String {
    server.process.wait_for_line("address of HTTP", |line| {
        let url = line.strip_prefix("HTTP and dashboard at https://127.0.0.1:")?;
        Some(format!("https://localhost:{}", url.trim_end_matches('/')))
    })
}

/// Runs `curl`. Returns its exit code and all that it printed.
#[track_caller]
fn curl(words: &[&str]) -> (Option<i32>, String) {
    let ended = Process::start(Command::new("curl").arg("-sS").args(words)).finish();
    (ended.code, [ended.stdout().join("\n"), ended.stderr()].concat())
}

#[test]
#[ignore = "needs foreign programs"]
fn the_line_protocol_works_over_tls() {
    let (server, authority) = broker(&[]);
    let ca = authority.certificate_file();
    let mut listener = start_socat(server.address, &ca);
    listener.wait_for_line_with("Connected.");
    let mut typed = start_s_client(server.address, &ca, &["-quiet"]);
    typed.wait_for_line_with("Connected.");
    typed.write("http://a.example/\n");
    listener.wait_for_line_with("http://a.example/");
    listener.write("http://b.example/\n");
    typed.wait_for_line_with("http://b.example/");
    // Closing one direction leaves the other one open, as with nc -N.
    listener.close_stdin();
    listener.wait_for_line_with(FAREWELL);
    listener.finish().expect_code(0);
    let python = "import socket, ssl, sys\n\
        context = ssl.create_default_context(cafile=sys.argv[2])\n\
        plain = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n\
        with context.wrap_socket(plain, server_hostname='localhost') as secure:\n\
        \x20   secure.sendall(b'HELLO echo=py\\nPUB new-url http://c.example/\\nQUIT\\n')\n\
        \x20   print(secure.version(), secure.makefile().read())\n";
    let port = server.address.port().to_string();
    let python = Process::start(Command::new("python3").args(["-c", python, &port, &ca])).finish();
    let output = python.expect_code(0).stdout();
    assert!(output[0].starts_with("TLSv1.3 Connected."), "{output:?}");
    assert!(output.iter().any(|line| line == "+OK 3 1"), "{output:?}");
    typed.wait_for_line_with("http://c.example/");
}

#[test]
#[ignore = "needs foreign programs"]
fn https_uses_the_same_certificate() {
    let (server, authority) = broker(&[]);
    let (url, ca) = (https_url(&server), authority.certificate_file());
    let health = format!("{url}/health");
    assert_eq!(curl(&["--cacert", &ca, &health]), (Some(0), r#"{"status":"ok"}"#.to_owned()));
    let (_, index) = curl(&["--cacert", &ca, &url]);
    let index: Value = serde_json::from_str(&index).unwrap();
    assert_eq!((&index["port"], &index["tls"]), (&server.address.port().into(), &true.into()));
    let topic = format!("{url}/topics/news/events");
    let (code, output) = curl(&["--cacert", &ca, "-d", "{\"payload\":\"a\"}", &topic]);
    assert_eq!(code, Some(0), "{output}");
    // curl's exit codes: 60 means that the certificate is not trusted; 1, 52 and 56 that a request
    // without TLS gets no answer.
    assert_eq!(curl(&[&health]).0, Some(60));
    let plain = health.replace("https:", "http:");
    let (code, output) = curl(&[&plain]);
    assert!(matches!(code, Some(1 | 52 | 56)), "{code:?} {output}");
}

#[test]
#[ignore = "needs foreign programs"]
fn only_secure_tls_versions_are_accepted() {
    let (server, authority) = broker(&[]);
    let ca = authority.certificate_file();
    let others = start_socat(server.address, &ca);
    others.wait_for_line_with("Connected.");
    for (version, is_spoken) in
        [("-tls1", false), ("-tls1_1", false), ("-tls1_2", true), ("-tls1_3", true)]
    {
        let flags = [version, "-quiet", "-cipher", "ALL:@SECLEVEL=0"];
        let mut client = start_s_client(server.address, &ca, &flags);
        if is_spoken {
            client.wait_for_line_with("Connected.");
            client.write("QUIT\n");
            client.finish().expect_code(0);
        } else {
            let output = client.finish().expect_code(1);
            assert_eq!(output.stdout(), [""; 0], "{version}");
            assert!(output.stderr().contains("alert"), "{version}: {}", output.stderr());
        }
    }
    // A client without TLS receives no text.
    let mut plain = start_nc(server.address, &[]);
    plain.write("http://a.example/\n");
    let output = plain.finish();
    assert!(
        !output.stdout().iter().any(|line| line.contains("Connected")),
        "{:?}",
        output.stdout()
    );
    server.process.wait_for_line_with("no TLS: closed");
    // A browser offers its protocols (ALPN), and the line protocol is none of them.
    let url = format!("https://localhost:{}/", server.address.port());
    let (code, output) = curl(&["--cacert", &ca, &url]);
    assert_eq!(code, Some(35), "{output}");
    let stats = Process::start(&mut tidings_command(
        server.folder.path(),
        ["topic", "ls", "--json", "--broker", &server.address_text(), "--ca", &ca],
    ));
    let output = stats.finish().expect_code(0).stdout().join("\n");
    assert!(!output.contains("a.example"), "{output}");
    assert!(!others.has_printed("a.example"));
}

/// testssl and sslscan judge the listeners.
#[test]
#[ignore = "needs foreign programs"]
fn tls_scanners_find_no_weakness() {
    let (server, authority) = broker(&[]);
    let folder = server.folder.path();
    let url = https_url(&server);
    let mut testssl = Command::new("testssl");
    testssl
        .args(["--quiet", "--color", "0", "--warnings", "off", "--ip", "one", "--add-ca"])
        .arg(authority.certificate_file())
        .args(["--protocols", "--std", "--fs", "--vulnerable", "--jsonfile", "found.json"])
        .arg(url.trim_start_matches("https://"))
        .current_dir(folder);
    let mut sslscan = Command::new("sslscan");
    sslscan.args(["--no-colour", "--xml=-", &server.address_text()]);
    let (testssl, sslscan) = (Process::start(&mut testssl), Process::start(&mut sslscan));
    // The line port: enabled protocols, and strength of the ciphers.
    let scan = sslscan.finish().expect_code(0).stdout();
    let lines = |tag, part| -> Vec<&String> {
        let is_it = |line: &&String| line.trim_start().starts_with(tag) && line.contains(part);
        scan.iter().filter(is_it).collect()
    };
    let spoken = lines("<protocol ", "enabled=\"1\"");
    assert_eq!(spoken.len(), 2, "{spoken:#?}");
    for (version, line) in [("version=\"1.2\"", spoken[0]), ("version=\"1.3\"", spoken[1])] {
        assert!(line.contains(version), "{spoken:#?}");
    }
    // Next to `weak` and `medium` there are `strong` and, for ciphers of TLS 1.3 only,
    // `acceptable`.
    let of = |strength| lines("<cipher ", strength).len();
    let (all, good) = (of(""), of("strength=\"strong\"") + of("strength=\"acceptable\""));
    assert!(all >= 6 && all == good, "{scan:#?}");
    // HTTP: all vulnerabilities that have a name.
    testssl.finish();
    let found = fs::read_to_string(folder.join("found.json")).unwrap();
    let found: Vec<Value> = serde_json::from_str(&found).unwrap();
    // These entries are about the scanner itself.
    let ours = found
        .iter()
        .filter(|it| !["engine_problem", "scanTime"].contains(&it["id"].as_str().unwrap()));
    let ours: Vec<_> = ours.collect();
    let bad: Vec<_> = ours
        .iter()
        .filter(|it| !["OK", "INFO"].contains(&it["severity"].as_str().unwrap()))
        .collect();
    assert!(bad.is_empty(), "{bad:#?}");
    let expect_finding = |id: &str, text: &str| {
        let it =
            ours.iter().find(|it| it["id"] == id).unwrap_or_else(|| panic!("no {id}: {ours:#?}"));
        assert!(it["finding"].as_str().unwrap().contains(text), "{it}");
    };
    for version in ["SSLv2", "SSLv3", "TLS1", "TLS1_1"] {
        expect_finding(version, "not offered");
    }
    for (id, text) in
        [("TLS1_2", "offered"), ("TLS1_3", "offered"), ("cipherlist_STRONG", "offered")]
    {
        expect_finding(id, text);
    }
    for id in ["heartbleed", "ROBOT", "secure_client_renego", "BREACH", "LUCKY13", "RC4", "DROWN"] {
        expect_finding(id, "");
    }
}

#[test]
#[ignore = "needs foreign programs"]
fn a_certificate_is_replaced_while_connections_are_open() {
    let (server, authority) = broker(&[]);
    let ca = authority.certificate_file();
    let mut early = start_socat(server.address, &ca);
    early.wait_for_line_with("Connected.");
    let shown = || {
        let mut client = start_s_client(server.address, &ca, &["-no_ign_eof"]);
        client.close_stdin();
        let output = client.finish().stdout();
        output.into_iter().find(|line| line.contains(" s:")).unwrap()
    };
    assert!(shown().contains("CN = broker"), "{}", shown());
    let replace = |to: &str| {
        for kind in ["pem", "key"] {
            fs::copy(authority.signed_file(to, kind), authority.signed_file("broker", kind))
                .unwrap();
        }
    };
    authority.sign("second");
    replace("second");
    wait_until("the second certificate", || shown().contains("CN = second").then_some(()));
    // A file that contains no key changes nothing, and is reported once.
    fs::write(authority.signed_file("broker", "key"), "garbage").unwrap();
    server.process.wait_for_line_with("the old certificate stays");
    assert!(shown().contains("CN = second"));
    authority.sign("third");
    replace("third");
    wait_until("the third certificate", || shown().contains("CN = third").then_some(()));
    early.write("http://a.example/\nhttp://b.example/\n");
    let late = start_socat(server.address, &ca);
    late.wait_for_line_with("Connected.");
    early.close_stdin();
    early.wait_for_line_with(FAREWELL);
    early.finish().expect_code(0);
    let log = server.process.signal_and_finish("TERM").expect_code(0);
    assert_eq!(log.stderr().matches("the old certificate stays").count(), 1);
}

#[test]
fn status_says_when_the_certificate_expires() {
    let (server, authority) = broker(&[]);
    // The broker reads the new certificate within seconds.
    authority.sign_with("broker", make_nearly_expired);
    let (port, ca) = (server.address.port(), authority.certificate_file());
    let broker = format!("localhost:{port}");
    let status =
        || run_tidings(server.folder.path(), &["status", "--broker", &broker, "--ca", &ca]);
    let expires = || status().stdout()[0] == "The certificate expires in 4d 23h.";
    wait_until("the certificate to expire soon", || expires().then_some(()));
    status().expect_code(1);
    authority.sign_with("broker", make_expired);
    server.process.wait_for_line("the expiry", |line| {
        line.contains("broker.pem has expired; clients cannot connect").then_some(())
    });
}

#[test]
#[ignore = "needs foreign programs"]
fn a_client_certificate_names_the_client() {
    let folder = TempDir::new().unwrap();
    let clients = CertificateAuthority::new(folder.path(), "clients");
    clients.sign("alice");
    clients.sign_with("late", make_expired);
    let others = CertificateAuthority::new(folder.path(), "others");
    others.sign("mallory");
    let (server, authority) = broker(&["--client-ca", &clients.certificate_file()]);
    let (url, ca) = (https_url(&server), authority.certificate_file());
    let health = format!("{url}/health");
    let connect_as = |identity: Option<(&CertificateAuthority, &str)>| {
        let files =
            identity.map(|(of, name)| (of.signed_file(name, "pem"), of.signed_file(name, "key")));
        let mut words = vec!["--cacert", &ca, &health];
        let mut flags = vec!["topic", "ls", "--ca", &ca];
        if let Some((cert, key)) = &files {
            words.extend(["--cert", cert, "--key", key]);
            flags.extend(["--cert", cert, "--cert-key", key]);
        }
        (curl(&words), run_at(&server, &flags))
    };
    for identity in [None, Some((&clients, "alice"))] {
        let ((code, output), listed) = connect_as(identity);
        assert_eq!((code, output.as_str()), (Some(0), r#"{"status":"ok"}"#));
        listed.expect_code(0);
    }
    server.process.wait_for_line("alice's name", |line| {
        (line.contains("encrypted") && line.ends_with("(alice)")).then_some(())
    });
    for identity in [(&others, "mallory"), (&clients, "late")] {
        let ((code, output), listed) = connect_as(Some(identity));
        assert_ne!(code, Some(0), "{output}");
        listed.expect_code(1).expect_stderr("the broker rejected the client certificate (--cert)");
        assert!(!server.process.has_printed(&format!("({})", identity.1)));
    }
}

#[test]
#[ignore = "needs foreign programs"]
fn a_revoked_client_certificate_is_rejected() {
    let folder = TempDir::new().unwrap();
    let clients = CertificateAuthority::new(folder.path(), "clients");
    clients.sign("alice");
    clients.sign("bob");
    let list = clients.write_revocation_list(&["bob"], true);
    let (server, authority) =
        broker(&["--client-ca", &clients.certificate_file(), "--client-crl", &list]);
    let ca = authority.certificate_file();
    let is_accepted = |name: &str| {
        let (cert, key) = (clients.signed_file(name, "pem"), clients.signed_file(name, "key"));
        let words = ["topic", "ls", "--ca", &ca, "--cert", &cert, "--cert-key", &key];
        let output = run_at(&server, &words);
        let refused =
            output.stderr().contains("the broker rejected the client certificate (--cert)");
        assert_eq!(output.code != Some(0), refused, "{name}: {output:?}");
        !refused
    };
    let is_accepted_by_http = |name: &str| {
        let (cert, key) = (clients.signed_file(name, "pem"), clients.signed_file(name, "key"));
        let health = format!("{}/health", https_url(&server));
        curl(&["--cacert", &ca, "--cert", &cert, "--key", &key, &health]).0 == Some(0)
    };
    assert!(is_accepted("alice") && !is_accepted("bob"));
    assert!(is_accepted_by_http("alice") && !is_accepted_by_http("bob"));
    // A client without a certificate is not affected.
    run_at(&server, &["topic", "ls", "--ca", &ca]).expect_code(0);
    clients.write_revocation_list(&["alice", "bob"], true);
    wait_until("the revocation of alice", || (!is_accepted("alice")).then_some(()));
    assert!(!is_accepted_by_http("alice"));
    clients.write_revocation_list(&[], true);
    wait_until("both certificates to be accepted again", || {
        (is_accepted("alice") && is_accepted("bob")).then_some(())
    });
    // An expired list may lack newer revocations.
    clients.write_revocation_list(&[], false);
    wait_until("an expired list to reject all certificates", || {
        (!is_accepted("alice")).then_some(())
    });
}

#[test]
#[ignore = "needs foreign programs"]
fn local_clients_reach_a_broker_with_tls() {
    let (server, authority) = broker(&[]);
    let socket = server.data_dir().join("broker.sock");
    let mut nearby = Process::start(Command::new("nc").arg("-NU").arg(&socket));
    nearby.wait_for_line_with("Connected.");
    nearby.write("HELLO echo=n\nPUB t a\nQUIT\n");
    nearby.wait_for_line_with("+OK 1 1");
    let ca = authority.certificate_file();
    let listed = run_at(&server, &["topic", "ls", "--ca", &ca]).expect_code(0);
    assert!(listed.stdout().iter().any(|line| line.starts_with("t ")), "{:?}", listed.stdout());
    // A client without TLS gets no response over the network.
    let mut plain = LineConnection::connect(server.address);
    plain.send("HELLO echo=p\n");
    let output = run_at(&server, &["topic", "ls"]).expect_code(1).stderr();
    assert!(output.contains("it speaks TLS: --tls"), "{output}");
    let url = https_url(&server);
    let health = |words: &[&str]| {
        run_tidings(server.folder.path(), &[&["health", "--http"], words].concat())
    };
    health(&[&url, "--ca", &ca]).expect_code(0);
    health(&[&url]).expect_code(1);
    let stderr = health(&[&url.replace("https", "http")]).expect_code(1).stderr();
    assert!(stderr.contains("; if it expects TLS, begin with https://"), "{stderr}");
    server.process.signal_and_finish("TERM").expect_code(0);
    assert!(!socket.exists());
}

#[test]
#[ignore = "needs foreign programs"]
fn an_idle_tls_subscriber_uses_little_memory() {
    const SUBSCRIBERS: u64 = 400;
    let (server, authority) = broker(&["--sync", "memory"]);
    let script = "import socket, ssl, sys\n\
        context = ssl.create_default_context(cafile=sys.argv[2])\n\
        def subscriber():\n\
        \x20   plain = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n\
        \x20   secure = context.wrap_socket(plain, server_hostname='localhost')\n\
        \x20   lines = secure.makefile('rb')\n\
        \x20   secure.sendall(b'HELLO echo=x\\nSUB t\\n')\n\
        \x20   while lines.readline() != b'+OK\\r\\n': pass\n\
        \x20   return secure, lines\n\
        kept = []\n\
        for count in sys.stdin:\n\
        \x20   kept += [subscriber() for _ in range(int(count))]\n\
        \x20   print('subscribers:', len(kept), flush=True)\n";
    let port = server.address.port().to_string();
    let mut python = Process::start(Command::new("python3").args([
        "-c",
        script,
        &port,
        &authority.certificate_file(),
    ]));
    // The first connections pay for what is allocated once.
    python.write("100\n");
    python.wait_for_line_with("subscribers: 100");
    let before = server.process.resident_memory_bytes();
    python.write(format!("{SUBSCRIBERS}\n"));
    python.wait_for_line_with("subscribers: 500");
    let each = server.process.resident_memory_bytes().saturating_sub(before) / SUBSCRIBERS;
    assert!(each <= 24 << 10, "{each} bytes");
}
