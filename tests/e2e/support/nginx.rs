//! nginx on a free port, with its own configuration and files.

use std::fs;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

use super::openssl::openssl;
use super::ports::free_port;
use super::process::Process;
use super::wait::wait_until;

/// A running nginx; its logs and temporary files are in `folder`.
#[derive(Debug)]
pub(crate) struct Nginx {
    pub(crate) process: Process,
    pub(crate) folder: TempDir,
    pub(crate) port: u16,
}

impl Nginx {
    /// Starts nginx; `server` is added to its one server block, `http` to the block around it.
    #[track_caller]
    pub(crate) fn start(folder: TempDir, http: &str, server: &str) -> Self {
        let port = free_port();
        let configuration = format!(
            "daemon off;
            master_process off;
            pid nginx.pid;
            events {{ worker_connections 256; }}
            http {{
                include /etc/nginx/mime.types;
                client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi;
                uwsgi_temp_path uwsgi; scgi_temp_path scgi;
                {http}
                server {{ listen 127.0.0.1:{port}; {server} }}
            }}\n"
        );
        fs::write(folder.path().join("nginx.conf"), configuration).unwrap();
        let mut command = Command::new("nginx");
        command.args(["-e", "stderr", "-c", "nginx.conf", "-p"]).arg(folder.path());
        let process = Process::start(&mut command);
        wait_until("nginx to listen", || TcpStream::connect(("127.0.0.1", port)).ok());
        Self { process, folder, port }
    }

    /// The URL of the start page.
    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}/", self.port)
    }
}

/// Starts an nginx with TLS for `localhost` and 127.0.0.1 in front of another server; also returns
/// its port and certificate.
#[track_caller]
pub(crate) fn start_tls_proxy(to: u16) -> (Nginx, u16, PathBuf) {
    start_tls(&format!(
        "location / {{ proxy_pass http://127.0.0.1:{to}; proxy_set_header Host $http_host; }}"
    ))
}

/// The same with other locations.
#[track_caller]
pub(crate) fn start_tls(locations: &str) -> (Nginx, u16, PathBuf) {
    let (folder, port) = (TempDir::new().unwrap(), free_port());
    let files = ["certificate.pem", "key.pem"].map(|name| folder.path().join(name));
    let [certificate, key] = files.clone().map(|file| file.display().to_string());
    let about = ["-subj", "/CN=localhost", "-days", "2"];
    let names = ["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"];
    let leaf = ["-addext", "basicConstraints=critical,CA:FALSE"];
    let new = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
    openssl(
        &[&new[..], &about, &names, &leaf, &["-keyout", &key, "-out", &certificate]].concat(),
        b"",
    );
    let server = format!(
        "listen 127.0.0.1:{port} ssl; ssl_certificate {certificate}; ssl_certificate_key {key};
        {locations}"
    );
    let [certificate, _] = files;
    (Nginx::start(folder, "", &server), port, certificate)
}
