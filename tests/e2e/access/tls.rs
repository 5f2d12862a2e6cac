//! Encrypted listeners, as foreign programs find them.

use std::fs;
use std::process::Command;

use rcgen::CustomExtension;
use tempfile::TempDir;

use crate::support::line_connection::{FAREWELL, LineConnection};
use crate::support::nc::start_nc;
use crate::support::process::{Process, Server, run_at, run_tidings, tidings_command};
use crate::support::tls::{CertificateAuthority, make_expired, start_s_client, start_socat};
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

/// Where HTTP is.
#[track_caller]
fn https_url(server: &Server) -> String {
    server.process.wait_for_line("address of HTTP", |line| {
        let url = line.strip_prefix("HTTP at https://127.0.0.1:")?;
        Some(format!("https://localhost:{}", url.trim_end_matches('/')))
    })
}

/// `curl` to its end, which is silent but for what it got and what went wrong.
#[track_caller]
fn curl(words: &[&str]) -> (Option<i32>, String) {
    let ended = Process::start(Command::new("curl").arg("-sS").args(words)).finish();
    (ended.code, [ended.stdout().join("\n"), ended.stderr()].concat())
}

#[test]
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
    // The end of what comes is not the end of what goes, as it is for nc -N.
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
    let said = python.expect_code(0).stdout();
    assert!(said[0].starts_with("TLSv1.3 Connected."), "{said:?}");
    assert!(said.iter().any(|line| line == "+OK 3 1"), "{said:?}");
    typed.wait_for_line_with("http://c.example/");
}

#[test]
fn https_uses_the_same_certificate() {
    let (server, authority) = broker(&[]);
    let (url, ca) = (https_url(&server), authority.certificate_file());
    let health = format!("{url}/health");
    assert_eq!(curl(&["--cacert", &ca, &health]), (Some(0), r#"{"status":"ok"}"#.to_owned()));
    let topic = format!("{url}/topics/news/events");
    let (code, said) = curl(&["--cacert", &ca, "-d", "{\"payload\":\"a\"}", &topic]);
    assert_eq!(code, Some(0), "{said}");
    // 60: the certificate is not trusted; 1 and 52: what is not encrypted gets no answer.
    assert_eq!(curl(&[&health]).0, Some(60));
    let plain = health.replace("https:", "http:");
    let (code, said) = curl(&[&plain]);
    assert!(matches!(code, Some(1 | 52 | 56)), "{code:?} {said}");
}

#[test]
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
            let said = client.finish().expect_code(1);
            assert_eq!(said.stdout(), [""; 0], "{version}");
            assert!(said.stderr().contains("alert"), "{version}: {}", said.stderr());
        }
    }
    // One who does not know that this is encrypted hears nothing that is meant for people.
    let mut plain = start_nc(server.address, &[]);
    plain.write("http://a.example/\n");
    let said = plain.finish();
    assert!(!said.stdout().iter().any(|line| line.contains("Connected")), "{:?}", said.stdout());
    server.process.wait_for_line_with("no TLS: closed");
    // A browser offers what it speaks, which lines are not.
    let url = format!("https://localhost:{}/", server.address.port());
    let (code, said) = curl(&["--cacert", &ca, &url]);
    assert_eq!(code, Some(35), "{said}");
    let stats = Process::start(&mut tidings_command(
        server.folder.path(),
        ["topic", "ls", "--json", "--broker", &server.address_text(), "--ca", &ca],
    ));
    let said = stats.finish().expect_code(0).stdout().join("\n");
    assert!(!said.contains("a.example"), "{said}");
    assert!(!others.has_printed("a.example"));
}

/// Judged by programs that others judge servers by.
#[test]
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
    // By lines: what is enabled, and with how many bits.
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
    // Next to `weak` and `medium` there are `strong` and, for what is TLS 1.3's alone,
    // `acceptable`.
    let of = |strength| lines("<cipher ", strength).len();
    let (all, good) = (of(""), of("strength=\"strong\"") + of("strength=\"acceptable\""));
    assert!(all >= 6 && all == good, "{scan:#?}");
    // By HTTP: everything that has a name by now.
    testssl.finish();
    let found = fs::read_to_string(folder.join("found.json")).unwrap();
    let found: Vec<serde_json::Value> = serde_json::from_str(&found).unwrap();
    // What it says of itself is not about us.
    let ours = found
        .iter()
        .filter(|it| !["engine_problem", "scanTime"].contains(&it["id"].as_str().unwrap()));
    let ours: Vec<_> = ours.collect();
    let bad: Vec<_> = ours
        .iter()
        .filter(|it| !["OK", "INFO"].contains(&it["severity"].as_str().unwrap()))
        .collect();
    assert!(bad.is_empty(), "{bad:#?}");
    let says = |id: &str, text: &str| {
        let it =
            ours.iter().find(|it| it["id"] == id).unwrap_or_else(|| panic!("no {id}: {ours:#?}"));
        assert!(it["finding"].as_str().unwrap().contains(text), "{it}");
    };
    for version in ["SSLv2", "SSLv3", "TLS1", "TLS1_1"] {
        says(version, "not offered");
    }
    for (id, text) in
        [("TLS1_2", "offered"), ("TLS1_3", "offered"), ("cipherlist_STRONG", "offered")]
    {
        says(id, text);
    }
    for id in ["heartbleed", "ROBOT", "secure_client_renego", "BREACH", "LUCKY13", "RC4", "DROWN"] {
        says(id, "");
    }
}

#[test]
fn a_certificate_is_replaced_while_connections_are_open() {
    let (server, authority) = broker(&[]);
    let ca = authority.certificate_file();
    let mut early = start_socat(server.address, &ca);
    early.wait_for_line_with("Connected.");
    let shown = || {
        let mut client = start_s_client(server.address, &ca, &["-no_ign_eof"]);
        client.close_stdin();
        let said = client.finish().stdout();
        said.into_iter().find(|line| line.contains(" s:")).unwrap()
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
    // What is no key changes nothing, and is said once.
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
    let ask = |who: Option<(&CertificateAuthority, &str)>| {
        let files =
            who.map(|(of, name)| (of.signed_file(name, "pem"), of.signed_file(name, "key")));
        let mut words = vec!["--cacert", &ca, &health];
        let mut flags = vec!["topic", "ls", "--ca", &ca];
        if let Some((cert, key)) = &files {
            words.extend(["--cert", cert, "--key", key]);
            flags.extend(["--cert", cert, "--key", key]);
        }
        (curl(&words), run_at(&server, &flags))
    };
    for who in [None, Some((&clients, "alice"))] {
        let ((code, said), listed) = ask(who);
        assert_eq!((code, said.as_str()), (Some(0), r#"{"status":"ok"}"#));
        listed.expect_code(0);
    }
    server.process.wait_for_line("alice's name", |line| {
        (line.contains("encrypted") && line.ends_with("(alice)")).then_some(())
    });
    for who in [(&others, "mallory"), (&clients, "late")] {
        let ((code, said), listed) = ask(Some(who));
        assert_ne!(code, Some(0), "{said}");
        let said = listed.expect_code(1).stderr();
        assert!(said.contains("the broker rejected the client certificate (--cert)"), "{said}");
        assert!(!server.process.has_printed(&format!("({})", who.1)));
    }
}

#[test]
fn a_revoked_client_certificate_is_rejected() {
    let folder = TempDir::new().unwrap();
    let clients = CertificateAuthority::new(folder.path(), "clients");
    clients.sign("alice");
    clients.sign("bob");
    let list = clients.write_revocation_list(&["bob"], true);
    let (server, authority) =
        broker(&["--client-ca", &clients.certificate_file(), "--client-crl", &list]);
    let ca = authority.certificate_file();
    let comes_in = |name: &str| {
        let (cert, key) = (clients.signed_file(name, "pem"), clients.signed_file(name, "key"));
        let words = ["topic", "ls", "--ca", &ca, "--cert", &cert, "--key", &key];
        let said = run_at(&server, &words);
        let refused = said.stderr().contains("the broker rejected the client certificate (--cert)");
        assert_eq!(said.code != Some(0), refused, "{name}: {said:?}");
        !refused
    };
    let comes_in_by_http = |name: &str| {
        let (cert, key) = (clients.signed_file(name, "pem"), clients.signed_file(name, "key"));
        let health = format!("{}/health", https_url(&server));
        curl(&["--cacert", &ca, "--cert", &cert, "--key", &key, &health]).0 == Some(0)
    };
    assert!(comes_in("alice") && !comes_in("bob"));
    assert!(comes_in_by_http("alice") && !comes_in_by_http("bob"));
    // Who shows none is asked for something else.
    run_at(&server, &["topic", "ls", "--ca", &ca]).expect_code(0);
    clients.write_revocation_list(&["alice", "bob"], true);
    wait_until("alice's end", || (!comes_in("alice")).then_some(()));
    assert!(!comes_in_by_http("alice"));
    clients.write_revocation_list(&[], true);
    wait_until("both are back", || (comes_in("alice") && comes_in("bob")).then_some(()));
    // What was good yesterday may leave out what was revoked since.
    clients.write_revocation_list(&[], false);
    wait_until("nobody is let in by an old list", || (!comes_in("alice")).then_some(()));
}

#[test]
fn a_certificate_file_without_the_issuer_causes_a_warning() {
    let folder = TempDir::new().unwrap();
    let authority = CertificateAuthority::new(folder.path(), "authority");
    // Authority information access (RFC 5280, 4.2.2.1): the issuer's certificate is at http://a/
    let content = b"\x30\x17\x30\x15\x06\x08\x2b\x06\x01\x05\x05\x07\x30\x02\x86\x09http://a/";
    let access = CustomExtension::from_oid_content(&[1, 3, 6, 1, 5, 5, 7, 1, 1], content.to_vec());
    authority.sign_with("alone", |params| params.custom_extensions.push(access));
    let (cert, key) =
        (authority.signed_file("alone", "pem"), authority.signed_file("alone", "key"));
    let server = Server::start(&["broker", "--tls-cert", &cert, "--tls-key", &key]);
    server
        .process
        .wait_for_line_with("lacks the certificate of \"authority\", which issued \"alone\"");
    // A client whose authority is the issuer needs nothing more.
    run_at(&server, &["topic", "ls", "--ca", &authority.certificate_file()]).expect_code(0);
}

#[test]
fn wrong_tls_files_prevent_the_start() {
    let folder = TempDir::new().unwrap();
    let authority = CertificateAuthority::new(folder.path(), "authority");
    authority.sign("one");
    authority.sign("other");
    let start = |cert: &str, key: &str| {
        let words = ["broker", "--listen", "127.0.0.1:0", "--tls-cert", cert, "--tls-key", key];
        run_tidings(folder.path(), &words).expect_code(1).stderr()
    };
    let said = start("one.pem", "other.key");
    assert!(
        said.contains("the key in other.key does not belong to the certificate in one.pem"),
        "{said}"
    );
    let said = start("none.pem", "one.key");
    assert!(said.contains("cannot read none.pem: "), "{said}");
    let said =
        run_tidings(folder.path(), &["broker", "--tls-cert", "one.pem"]).expect_code(2).stderr();
    assert!(said.contains("--tls-key"), "{said}");
}

#[test]
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
    // Nothing of it is there for those who come over the network without.
    let mut plain = LineConnection::connect(server.address);
    plain.send("HELLO echo=p\n");
    let said = run_at(&server, &["topic", "ls"]).expect_code(1).stderr();
    assert!(said.contains("it speaks TLS: --tls"), "{said}");
    server.process.signal_and_finish("TERM").expect_code(0);
    assert!(!socket.exists());
}

#[test]
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
        \x20   print('there are', len(kept), flush=True)\n";
    let port = server.address.port().to_string();
    let mut python = Process::start(Command::new("python3").args([
        "-c",
        script,
        &port,
        &authority.certificate_file(),
    ]));
    // What is made once is there with the first ones.
    python.write("100\n");
    python.wait_for_line_with("there are 100");
    let before = server.process.resident_memory_bytes();
    python.write(format!("{SUBSCRIBERS}\n"));
    python.wait_for_line_with("there are 500");
    let each = server.process.resident_memory_bytes().saturating_sub(before) / SUBSCRIBERS;
    assert!(each <= 24 << 10, "{each} bytes");
}
