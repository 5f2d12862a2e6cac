//! Topics, publishers and subscribers.

mod commands;
mod filters;
mod newest_events;
mod peers;
mod pubsub;
mod readers;
mod topics;
mod unix_socket;
