//! Helpers of the tests: processes, connections and a web server that records its requests.

pub(crate) mod callback_server;
pub(crate) mod feed_fixture;
pub(crate) mod hostile;
pub(crate) mod http_client;
pub(crate) mod hub_site;
pub(crate) mod line_connection;
pub(crate) mod namespace;
pub(crate) mod nc;
pub(crate) mod nginx;
pub(crate) mod openssl;
pub(crate) mod origin;
pub(crate) mod page_database;
pub(crate) mod pipelined_connection;
pub(crate) mod pipelined_publisher;
pub(crate) mod postgres;
pub(crate) mod process;
pub(crate) mod scripted_broker;
pub(crate) mod seed;
pub(crate) mod small_disk;
pub(crate) mod strace;
pub(crate) mod tls;
pub(crate) mod topic_history;
pub(crate) mod wait;
pub(crate) mod wall_clock;
pub(crate) mod webhook_broker;
pub(crate) mod zmq;
