//! Prepares what a page opens: itself, its frames and its workers. Each waits until its requests
//! are intercepted.

use serde_json::{Value, json};

/// The size of the window, in CSS pixels.
pub(super) const WIDTH: u32 = 1280;
pub(super) const HEIGHT: u32 = 1024;

/// The calls that prepare a session, and let it go on.
pub(super) fn preparation(is_page: bool) -> Vec<(&'static str, Value)> {
    let mut calls = vec![
        ("Fetch.enable", json!({ "patterns": [{ "urlPattern": "*" }] })),
        (
            "Target.setAutoAttach",
            json!({ "autoAttach": true, "waitForDebuggerOnStart": true, "flatten": true }),
        ),
    ];
    if is_page {
        let window =
            json!({ "width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": false });
        calls.extend([
            ("Page.enable", json!({})),
            ("Inspector.enable", json!({})),
            ("Runtime.enable", json!({})),
            ("Log.enable", json!({})),
            ("Emulation.setDeviceMetricsOverride", window),
            ("Emulation.setFocusEmulationEnabled", json!({ "enabled": true })),
        ]);
    }
    calls.push(("Runtime.runIfWaitingForDebugger", json!({})));
    calls
}

/// The text of an error that a script caused, or that it printed as one.
pub(super) fn console_error(name: &str, params: &Value) -> Option<String> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    match name {
        "Runtime.exceptionThrown" => {
            let details = &params["exceptionDetails"];
            text(&details["exception"]["description"]).or_else(|| text(&details["text"]))
        }
        "Runtime.consoleAPICalled" if params["type"] == "error" => {
            let words = params["args"].as_array().into_iter().flatten();
            let words = words.map(|it| match &it["value"] {
                Value::Null => text(&it["description"]).unwrap_or_default(),
                Value::String(value) => value.clone(),
                value => value.to_string(),
            });
            Some(words.collect::<Vec<_>>().join(" "))
        }
        // Failed requests are in the list of requests.
        "Log.entryAdded" if params["entry"]["level"] == "error" => {
            text(&params["entry"]["text"]).filter(|_| params["entry"]["source"] != "network")
        }
        _ => None,
    }
}
