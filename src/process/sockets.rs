//! Sockets that a service manager has opened (socket activation of systemd).

use std::{env, io};

use listenfd::ListenFd;
use tidings_broker::Sockets;

use crate::terminal::failure::Failure;

/// The passed sockets; their names (`FileDescriptorName=`) tell their use.
pub(super) fn passed_sockets() -> Result<Sockets, Failure> {
    let mut passed = ListenFd::from_env();
    let mut sockets = Sockets::default();
    let names = env::var("LISTEN_FDNAMES").unwrap_or_default();
    let mut names = names.split(':');
    for at in 0..passed.len() {
        let name = names.next().unwrap_or_default();
        let wrong =
            |reason: String| Failure::Usage(format!("passed socket {at}, {name:?}: {reason}"));
        let place = match name {
            "line" => &mut sockets.line,
            "http" => &mut sockets.http,
            _ => {
                let reason = "set FileDescriptorName= of its unit to line or http".to_owned();
                return Err(wrong(reason));
            }
        };
        if place.is_some() {
            return Err(wrong("another passed socket has this name".to_owned()));
        }
        let taken = passed
            .take_tcp_listener(at)
            .and_then(|socket| socket.ok_or_else(|| io::Error::other("already in use")));
        *place = Some(taken.map_err(|error| wrong(error.to_string()))?);
    }
    Ok(sockets)
}
