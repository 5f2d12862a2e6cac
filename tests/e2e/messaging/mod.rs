//! Topics, publishers and subscribers.

mod commands;
mod newest;
mod notifier;
mod pubsub;
mod readers;
mod topics;
mod unix;
