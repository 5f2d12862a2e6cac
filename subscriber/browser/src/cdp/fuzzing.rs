//! Fuzz targets of this crate: properties of any bytes from a browser, which a page may have taken
//! over. For the feature `fuzzing` and for tests only.

use tokio::sync::mpsc;

use super::frames::Frames;
use super::message::{Message, decode};
use super::{EVENTS_MAX, Shared};

/// The name and the function of a target.
pub type Target = (&'static str, fn(&[u8]));

/// The targets of this crate.
pub const TARGETS: &[Target] = &[("cdp", cdp)];

/// The longest message of this target.
const BYTES_MAX: usize = 512;

fn messages(bytes: &[u8], piece: usize) -> Vec<Vec<u8>> {
    let mut frames = Frames::new(BYTES_MAX);
    let mut messages = Vec::new();
    for piece in bytes.chunks(piece) {
        frames.read(piece, |message| messages.push(message.to_vec()));
    }
    messages
}

/// Input: the bytes that a browser sends. The messages do not depend on how these are split. Only
/// events of the context `C` reach its page, and no more of them than there is room for.
fn cdp(bytes: &[u8]) {
    let whole = messages(bytes, usize::MAX);
    assert_eq!(messages(bytes, 7), whole, "in pieces");
    let shared = Shared::default();
    let (sender, mut events) = mpsc::channel(EVENTS_MAX);
    shared.0.lock().contexts.insert("C".to_owned(), sender);
    let answer = shared.expect_answer(None).expect("it is open");
    let mut attached = 0;
    for message in &whole {
        assert!(message.len() <= BYTES_MAX && !message.contains(&0), "{message:?}");
        shared.take(message);
        if let Some(Message::Event(event)) = decode(message) {
            attached += usize::from(event.name == "Target.attachedToTarget");
            let is_known = shared.0.lock().sessions.contains_key(&event.session);
            let of_page = event.params["targetInfo"]["browserContextId"] == "C";
            if let Ok(received) = events.try_recv() {
                assert_eq!(received, event);
                let is_end = event.name == "Target.detachedFromTarget";
                assert!(is_known || is_end || event.session.is_empty() && of_page, "{event:?}");
            }
        }
    }
    let state = shared.0.lock();
    assert!(state.sessions.len() <= attached && state.contexts.len() <= 1);
    assert_eq!(state.last_id, answer);
}

#[cfg(test)]
#[path = "../../../../fuzz/replay.rs"]
mod replay;
