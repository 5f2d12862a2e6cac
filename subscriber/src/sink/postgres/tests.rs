use super::super::testing::{record, transient};
use super::*;

/// The settings parsed from a text.
fn config(text: &str) -> Result<(String, SslMode), String> {
    let config: PostgresConfig =
        text.parse().map_err(|error: PostgresConfigError| error.to_string())?;
    Ok((config.name(), config.0.get_ssl_mode()))
}

#[test]
fn an_address_is_a_url_or_key_value_pairs_and_its_password_is_hidden() {
    let local = "postgres://me:secret@localhost/pages";
    assert_eq!(config(local), Ok(("postgres://localhost/pages".to_owned(), SslMode::Disable)));
    let far = "host=db.example.org port=5433 user=me password=secret";
    assert_eq!(config(far), Ok(("postgres://db.example.org:5433/me".to_owned(), SslMode::Prefer)));
    let told = "postgres://127.0.0.1/x?sslmode=require";
    assert_eq!(config(told), Ok(("postgres://127.0.0.1/x".to_owned(), SslMode::Require)));
    for wrong in ["", "user=me", "postgres://h/x?sslmode=perhaps", "host=a port=b"] {
        assert!(config(wrong).unwrap_err().contains("postgres://crawler@"), "{wrong}");
    }
}

#[test]
fn a_default_password_replaces_no_given_one() {
    let password = |text: &str| {
        let config: PostgresConfig = text.parse().unwrap();
        config.or_password("elsewhere").0.get_password().unwrap().to_vec()
    };
    assert_eq!(password("postgres://me@h/x"), b"elsewhere");
    assert_eq!(password("postgres://me:here@h/x"), b"here");
}

#[test]
fn keepalive_probes_are_sent_every_few_seconds() {
    let asked = |text: &str| {
        let config = text.parse::<PostgresConfig>().unwrap().0;
        let (idle, interval) = (config.get_keepalives_idle(), config.get_keepalives_interval());
        (
            idle.as_secs(),
            interval.map(|interval| interval.as_secs()),
            config.get_keepalives_retries(),
        )
    };
    assert_eq!(asked("postgres://h/x"), (10, Some(10), Some(3)));
    assert_eq!(asked("postgres://h/x?keepalives_idle=60"), (60, None, None));
}

#[test]
fn a_silent_server_times_out() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let config = format!("postgres://me@{address}/pages").parse().unwrap();
    let Err(error) =
        Postgres::open_within(&config, BodyCompressor::new(false), Duration::from_millis(50))
    else {
        panic!("the silent server accepted the login")
    };
    assert!(error.to_string().ends_with("has not answered within 50ms"), "{error}");
}

#[test]
fn of_each_page_of_a_batch_the_newest_attempt_is_stored() {
    let mut nul = record(2, 1);
    nul.report.title = Some("a\0b".to_owned());
    let batch = [record(3, 2), nul, record(3, 1), transient(2, 0)].map(Arc::new);
    let rows: Vec<serde_json::Value> = serde_json::from_str(&as_json(&batch).unwrap()).unwrap();
    let rows: Vec<_> =
        rows.iter().map(|row| (row["page"].as_str().unwrap(), &row["attempt"])).collect();
    assert_eq!(rows, [("crawlers.3.2", &1.into()), ("crawlers.3.3", &2.into())]);
    assert!(as_json(&batch).unwrap().contains(r"a\ufffdb"));
}
