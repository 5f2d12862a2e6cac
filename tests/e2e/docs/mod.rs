//! The documentation and the examples are run; links and citations are checked.

mod citations;
mod connections;
mod examples;
mod findings;
mod internet;
pub(crate) mod links;
mod modules;
pub(crate) mod pages;
mod several_machines;
