//! Files, signals, feeds, hubs, callbacks and ZeroMQ.

mod callbacks;
mod files;
mod files_faults;
mod html_topics;
mod hub;
mod hub_faults;
mod microblog;
mod push;
mod push_faults;
mod signals;
mod websub;
mod websub_interop;
mod zmq;
mod zmq_bridge;
mod zmq_faults;
