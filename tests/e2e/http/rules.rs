//! Rules of an operator for keys, over HTTP.

use serde_json::json;

use crate::support::http_client::HttpClient;

/// Produces each documented response.
pub(super) fn cover(http: &HttpClient) {
    let rule = "/groups/ruled/rules/*.Example.org";
    assert_eq!(http.send_json("PUT", rule, r#"{"block":true}"#).status, 404);
    assert_eq!(http.send_json("PUT", "/groups/ruled", r#"{"topics":["work"]}"#).status, 200);
    let set = http.send_json("PUT", rule, r#"{"block":true,"for":"1h","note":"abuse-1"}"#);
    assert_eq!(set.status, 200, "{}", set.body);
    assert_eq!(set.json()["key"], "*.example.org");
    let rules = http.get("/groups/ruled/rules").json();
    assert_eq!((&rules["matched"], &rules["rules"][0]["block"]), (&json!(1), &json!(true)));
    assert_eq!(http.request("DELETE", rule, &[]).status, 204);
    assert_eq!(http.request("DELETE", rule, &[]).status, 404);
    assert_eq!(http.send_json("PUT", rule, "{}").status, 400);
    let keyless = "/groups/g/rules/a.example";
    assert_eq!(http.send_json("PUT", keyless, r#"{"block":true}"#).status, 409);
    assert_eq!(http.request("DELETE", keyless, &[]).status, 409);
    assert_eq!(http.request("DELETE", "/groups/ruled", &[]).status, 204);
}
