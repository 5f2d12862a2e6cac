//! Several brokers that share a log in NATS: their start, and who leads when some of them are killed.

mod community;
mod copies;
mod crawling;
mod start;
