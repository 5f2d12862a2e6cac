//! Hosts with names, which only the crawlers of a test can resolve: to the addresses of an origin.

use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use tempfile::NamedTempFile;

use super::namespace::with_hosts_file;
use super::origin::Site;
use super::process::{Process, tidings_command};

/// The name with number n has the address of the host with number n of an origin.
#[derive(Debug)]
pub(crate) struct NamedHosts {
    pub(crate) names: Vec<String>,
    file: NamedTempFile,
}

impl NamedHosts {
    #[track_caller]
    pub(crate) fn new(names: Vec<String>) -> Self {
        let mut file = NamedTempFile::new().unwrap();
        writeln!(file, "127.0.0.1 localhost").unwrap();
        for (number, name) in (0..).zip(&names) {
            writeln!(file, "{} {name}", Site::host(number)).unwrap();
        }
        Self { names, file }
    }

    /// The name of a requested address.
    #[track_caller]
    pub(crate) fn name(&self, host: Ipv4Addr) -> &str {
        let number = (0..).zip(&self.names).find(|(number, _)| Site::host(*number) == host);
        number.expect("only named hosts are requested").1
    }

    /// Starts a crawler for a broker that knows the names; it stores in this folder.
    #[track_caller]
    pub(crate) fn start_crawler(&self, broker: SocketAddr, folder: &Path) -> Process {
        let arguments =
            ["crawl", "--broker", &broker.to_string(), "--allow-private", "--data", "."];
        let command = tidings_command(folder, arguments);
        let crawler = Process::start(&mut with_hosts_file(&command, self.file.path()));
        crawler.wait_for_line_with("fetching for");
        crawler
    }
}
