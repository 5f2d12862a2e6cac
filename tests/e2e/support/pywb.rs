//! pywb, which replays WARC files.

use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::support::ports::free_port;
use crate::support::process::Process;
use crate::support::wait::wait_until;

/// A running pywb.
pub(crate) struct Pywb {
    address: String,
    _server: Process,
    _folder: TempDir,
}

impl Pywb {
    /// Serves the closed WARC files of a folder.
    #[track_caller]
    pub(crate) fn serve(warc: &Path) -> Self {
        let bin = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/target/venv/bin"));
        let folder = TempDir::new().unwrap();
        let manage = |arguments: &[&str]| {
            let mut command = Command::new(bin.join("wb-manager"));
            let ran = command.args(arguments).current_dir(&folder).output().unwrap();
            assert!(ran.status.success(), "{ran:?}");
        };
        fs::write(folder.path().join("config.yaml"), "framed_replay: false").unwrap();
        manage(&["init", "crawl"]);
        let files = fs::read_dir(warc).unwrap().map(|file| file.unwrap().path());
        let files: Vec<_> =
            files.filter(|file| file.extension().is_some_and(|end| end == "gz")).collect();
        let names = files.iter().map(|file| file.to_str().unwrap());
        manage(&["add", "crawl"].into_iter().chain(names).collect::<Vec<_>>());
        let port = free_port().to_string();
        let address = format!("127.0.0.1:{port}");
        let mut command = Command::new(bin.join("wayback"));
        command.args(["--bind", "127.0.0.1", "--port", &port]).current_dir(&folder);
        let server = Process::start(&mut command);
        wait_until("pywb to listen", || TcpStream::connect(&address).ok());
        Self { address, _server: server, _folder: folder }
    }

    /// The address of a page in the archive: the capture of this time, or the newest. `form` is how
    /// pywb rewrites it: `id_` for not at all.
    pub(crate) fn url(&self, time: &str, form: &str, page: &str) -> String {
        format!("http://{}/crawl/{time}{form}/{page}", self.address)
    }

    /// The times of the captures of a page, the oldest first.
    #[track_caller]
    pub(crate) fn captures(&self, page: &str) -> Vec<String> {
        // The key of the page, the time, and an object.
        let (_, lines) = get(&format!("http://{}/crawl/cdx?url={page}", self.address));
        lines.lines().map(|line| line.split(' ').nth(1).unwrap().to_owned()).collect()
    }
}

/// The status and the body of an answer.
#[track_caller]
pub(crate) fn get(url: &str) -> (String, String) {
    let got = Command::new("curl").args(["-sS", "-w", "\n%{http_code}", url]).output().unwrap();
    assert!(got.status.success(), "{url}: {got:?}");
    let text = String::from_utf8_lossy(&got.stdout).into_owned();
    let (body, status) = text.rsplit_once('\n').unwrap();
    (status.to_owned(), body.to_owned())
}
