//! Ways into a Tidings broker and out of it for those who speak something else.
//!
//! Everything here is a client of the line protocol, on a socket, as any other program would be: it knows nothing of
//! the broker's insides, and what it does wrong costs the broker a connection.
//!
//! | module | who is at the other end |
//! |---|---|
//! | [`files`] | directories whose complete files are announced |
//! | [`signal`] | programs that can do nothing but look into a directory when they are sent a signal |
//! | [`zmq`] | ZeroMQ sockets |

pub mod files;
pub mod signal;
pub mod zmq;
