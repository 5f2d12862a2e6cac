//! The list of topics.

use super::Script;
use crate::support::http_client::HttpClient;
use crate::support::process::{Server, run_at};

#[test]
#[ignore = "needs foreign programs"]
fn the_line_beside_a_topic_shows_its_rate_of_the_last_minutes() {
    let server = Server::start_broker();
    let publish = |text: &str| run_at(&server, &["pub", "orders", text]).expect_code(0);
    publish("first");
    let http = HttpClient::new(&server);
    let mut script = Script::start("topics", &[&format!("{}/", http.base_url)]);
    script.when("publish", || {
        http.post_lines("/topics/orders", &"paid\n".repeat(300));
    });
    script.finish();
}
