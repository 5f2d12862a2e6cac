//! A listening unix socket and its file.

use std::fs::{self, Metadata, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::{Path, PathBuf};

use socket2::{Domain, SockAddr, Socket, Type};
use tokio::net::UnixListener;

use super::listener::BACKLOG;

/// The file of a socket. Dropping it removes the file, unless another file has replaced it.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    id: (u64, u64),
}

impl SocketFile {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|metadata| file_id(&metadata) == self.id) {
            // If this fails, the next start finds that the socket is stale.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Listens on a path, with the permissions `mode`. Replaces a stale socket, on which no process
/// listens, and no other file.
pub(crate) fn listen(path: &Path, mode: u32) -> io::Result<(UnixListener, SocketFile)> {
    // Checked before a stale socket is removed.
    SocketAddr::from_pathname(path).map_err(|_| path_too_long(path))?;
    remove_stale_socket(path)?;
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    // On Linux the file inherits these permissions, so at no moment can other users connect. On
    // systems without this, the second call sets them.
    let _ = rustix::fs::fchmod(&socket, rustix::fs::Mode::from_raw_mode(mode));
    socket.bind(&SockAddr::unix(path)?)?;
    let file = SocketFile { path: path.to_owned(), id: file_id(&fs::symlink_metadata(path)?) };
    // `mode` overrides the umask.
    fs::set_permissions(path, Permissions::from_mode(mode))?;
    socket.listen(BACKLOG)?;
    Ok((UnixListener::from_std(socket.into())?, file))
}

fn path_too_long(path: &Path) -> io::Error {
    let bytes = path.as_os_str().len();
    let text = format!(
        "the path has {bytes} bytes; the path of a unix socket may have at most 107, so use a \
         shorter one"
    );
    io::Error::new(ErrorKind::InvalidInput, text)
}

fn remove_stale_socket(path: &Path) -> io::Result<()> {
    let metadata = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if !metadata.file_type().is_socket() {
        let text = "the path exists and is not a socket; remove it, or use another path";
        return Err(io::Error::new(ErrorKind::AlreadyExists, text));
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => fs::remove_file(path),
        // Also if its queue is full, or if this process may not connect to it.
        _ => Err(ErrorKind::AddrInUse.into()),
    }
}

fn file_id(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener as Std;

    use super::*;

    #[tokio::test]
    async fn only_a_stale_socket_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        drop(Std::bind(&path).unwrap());
        assert!(path.exists(), "the file is left behind");
        let (listener, file) = listen(&path, 0o600).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(listen(&path, 0o600).unwrap_err().kind(), ErrorKind::AddrInUse);
        drop((listener, file));
        assert!(!path.exists());
        fs::write(&path, "precious").unwrap();
        assert_eq!(listen(&path, 0o600).unwrap_err().kind(), ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }

    #[tokio::test]
    async fn the_socket_file_of_another_listener_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let (_listener, file) = listen(&path, 0o666).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o666);
        fs::remove_file(&path).unwrap();
        // Kept, so that the number of the file is not given again.
        let (_other, _file) = listen(&path, 0o600).unwrap();
        drop(file);
        assert!(path.exists());
    }

    #[tokio::test]
    async fn a_path_that_is_too_long_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x".repeat(120));
        let error = listen(&path, 0o600).unwrap_err().to_string();
        assert!(error.contains("the path of a unix socket may have at most 107"), "{error}");
    }
}
