//! What the tests are written with: processes, connections, a web server that remembers.

pub(crate) mod clock;
pub(crate) mod history;
pub(crate) mod hooked;
pub(crate) mod hostile;
pub(crate) mod http;
pub(crate) mod hub_site;
pub(crate) mod namespace;
pub(crate) mod nc;
pub(crate) mod nginx;
pub(crate) mod openssl;
pub(crate) mod origin;
pub(crate) mod pages;
pub(crate) mod postgres;
pub(crate) mod process;
pub(crate) mod publisher;
pub(crate) mod receiver;
pub(crate) mod seed;
pub(crate) mod small_disk;
pub(crate) mod subscriber_scene;
pub(crate) mod talk;
pub(crate) mod tls;
pub(crate) mod trace;
pub(crate) mod wait;
pub(crate) mod wire;
pub(crate) mod zmq;
