//! A broker that a test plays, for answers that no real broker gives.

use std::io::{BufRead, BufReader, Lines, Write};
use std::net::{TcpListener, TcpStream};
use std::thread::{self, JoinHandle};

/// Starts a broker that accepts connections in `serve`. Returns its address.
pub(crate) fn start_scripted_broker(
    serve: impl FnOnce(TcpListener) + Send + 'static,
) -> (String, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (address, thread::spawn(move || serve(listener)))
}

/// A connection of a client after its `HELLO`.
pub(crate) struct ScriptedConnection {
    stream: TcpStream,
    lines: Lines<BufReader<TcpStream>>,
}

impl ScriptedConnection {
    /// Accepts a connection, and answers its `HELLO`.
    pub(crate) fn accept(listener: &TcpListener) -> Self {
        let (stream, _) = listener.accept().unwrap();
        let lines = BufReader::new(stream.try_clone().unwrap()).lines();
        let mut connection = Self { stream, lines };
        connection.send("Connected.  (PID 1)");
        let hello = connection.next().unwrap();
        let echo = hello.split(' ').find(|word| word.starts_with("echo=")).unwrap();
        connection.send(&format!("+OK tidings 0.1.0 id=1 clock=1 {echo} resume={:032x}", 0));
        connection
    }

    pub(crate) fn send(&self, line: &str) {
        (&self.stream).write_all(format!("{line}\r\n").as_bytes()).unwrap();
    }
}

/// The lines of the client, until its connection ends.
impl Iterator for ScriptedConnection {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        self.lines.next()?.ok()
    }
}
