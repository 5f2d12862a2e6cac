//! Messages of the Chrome `DevTools` Protocol. Fields that are not used are not read, so a new
//! version of the browser may add any.

use serde_json::{Value, json};

/// A message from the browser.
#[derive(Debug, PartialEq)]
pub(super) enum Message {
    /// The answer to a call, or the text of an error.
    Answer(u64, Result<Value, String>),
    /// An event.
    Event(Event),
}

/// What happened in a browser.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Event {
    /// The session of the page, frame or worker. Empty for the browser.
    pub(crate) session: String,
    /// The name, such as `Page.loadEventFired`.
    pub(crate) name: String,
    /// Its parameters.
    pub(crate) params: Value,
}

/// The bytes of a call, with the NUL that ends it. An empty session is the browser itself.
pub(super) fn encode(id: u64, session: &str, method: &str, params: Value) -> Vec<u8> {
    let mut call = json!({ "id": id, "method": method });
    call["params"] = params;
    if !session.is_empty() {
        call["sessionId"] = session.into();
    }
    let mut bytes = call.to_string().into_bytes();
    bytes.push(0);
    bytes
}

/// Reads one message. `None` if it is neither an answer nor an event.
pub(super) fn decode(bytes: &[u8]) -> Option<Message> {
    let mut message: Value = serde_json::from_slice(bytes).ok()?;
    if let Some(id) = message["id"].as_u64() {
        let answer = match message.get("error") {
            Some(error) => Err(error["message"].as_str().unwrap_or("unknown").to_owned()),
            None => Ok(message["result"].take()),
        };
        return Some(Message::Answer(id, answer));
    }
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let name = message["method"].as_str()?.to_owned();
    let session = text(&message["sessionId"]);
    Some(Message::Event(Event { session, name, params: message["params"].take() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_errors_and_events_are_read() {
        let answer = decode(br#"{"id":7,"result":{"a":1},"new":0}"#);
        assert_eq!(answer, Some(Message::Answer(7, Ok(json!({ "a": 1 })))));
        let error = decode(br#"{"id":8,"error":{"code":-32000,"message":"No target"}}"#);
        assert_eq!(error, Some(Message::Answer(8, Err("No target".to_owned()))));
        let event = Event { session: "S".into(), name: "Page.x".into(), params: json!({ "b": 2 }) };
        let read = decode(br#"{"method":"Page.x","params":{"b":2},"sessionId":"S"}"#);
        assert_eq!(read, Some(Message::Event(event)));
        for other in ["", "{}", "[]", "\"\u{1}", "{\"method\":1}"] {
            assert_eq!(decode(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn a_call_is_one_message() {
        let bytes = encode(1, "S", "Runtime.evaluate", json!({ "expression": "'\0'" }));
        assert_eq!(bytes.iter().position(|byte| *byte == 0), Some(bytes.len() - 1));
        let call: Value = serde_json::from_slice(&bytes[..bytes.len() - 1]).unwrap();
        assert_eq!(call["sessionId"], "S");
        assert_eq!(call["params"]["expression"], "'\0'");
    }
}
