//! The terminal of `tidings top`: taken at the start, restored at every end.

#![expect(clippy::disallowed_methods, reason = "a thread waits for keys")]

use std::time::Duration;

use anyhow::Context;
use ratatui::crossterm::event::{self, Event};
use ratatui::{DefaultTerminal, Frame};
use tokio::sync::mpsc;

use crate::terminal::failure::Failure;

/// How long the thread waits for a key before it checks whether keys are still wanted.
const KEY_WAIT: Duration = Duration::from_millis(100);

/// The terminal, for as long as this value lives. A panic restores it, too.
#[derive(Debug)]
pub(super) struct Screen(DefaultTerminal);

impl Screen {
    pub(super) fn open() -> Result<Self, Failure> {
        Ok(Self(ratatui::try_init().context("cannot use this terminal")?))
    }

    pub(super) fn draw(&mut self, draw: impl FnOnce(&mut Frame<'_>)) -> Result<(), Failure> {
        self.0.draw(draw).map(drop).map_err(Failure::from_output)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Keys, and changes of the size. They end when the terminal is gone.
pub(super) fn events() -> mpsc::Receiver<Event> {
    let (sender, events) = mpsc::channel(16);
    tokio::task::spawn_blocking(move || {
        while !sender.is_closed() {
            let event = match event::poll(KEY_WAIT) {
                Ok(false) => continue,
                Ok(true) => event::read(),
                Err(error) => Err(error),
            };
            let Ok(event) = event else { return };
            if sender.blocking_send(event).is_err() {
                return;
            }
        }
    });
    events
}
