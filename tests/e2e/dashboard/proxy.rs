//! The dashboard behind nginx with TLS, below a path of its own.

use super::Script;
use super::world::World;
use crate::support::nginx::start_tls;

#[test]
#[ignore = "needs foreign programs"]
fn the_dashboard_works_below_a_path_of_a_proxy() {
    let world = World::start();
    // The location of docs/internet.md.
    let (_nginx, port, _) = start_tls(&format!(
        "location /tidings/ {{
            proxy_pass {}/; proxy_http_version 1.1; proxy_set_header Host $http_host;
            proxy_set_header X-Forwarded-For $remote_addr; proxy_read_timeout 1h;
        }}",
        world.http.base_url
    ));
    let address = format!("https://127.0.0.1:{port}/tidings/");
    Script::start("proxy", &[&address, &world.operator]).finish();
    assert_eq!(world.json(&["group", "show", "crawlers"])[0]["paused"], "yes");
}
