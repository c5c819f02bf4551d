//! An HTTP server with scripted answers, for cases that a real server cannot be made to produce.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::thread::JoinHandle;

use crate::webhook_receiver::read;

/// The expected request method, and the status and body of the answer.
pub type Answer = (&'static str, u16, &'static str);

/// An HTTP server on loopback that expects requests in order.
#[derive(Debug)]
pub struct ScriptedServer {
    /// Its address, as `http://HOST:PORT`.
    pub address: String,
    serving: Option<JoinHandle<()>>,
}

impl ScriptedServer {
    /// Starts the server.
    ///
    /// # Panics
    /// If it cannot listen.
    #[must_use]
    pub fn new(script: &'static [Answer]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let serving = std::thread::spawn(move || {
            for answer in script {
                let (client, _) = listener.accept().expect("a client");
                give(&client, *answer);
            }
        });
        Self {
            address: format!("http://{address}"),
            serving: Some(serving),
        }
    }

    /// Waits until every answer was sent.
    ///
    /// # Panics
    /// If a request was not the expected one.
    pub fn end(mut self) {
        if let Some(serving) = self.serving.take() {
            serving.join().expect("the requests of the script");
        }
    }
}

/// Answers one request and closes its connection.
fn give(mut client: &TcpStream, (method, status, body): Answer) {
    let (first, ..) = read(client).expect("a request");
    assert!(first.starts_with(method), "{first} instead of {method}");
    let sent = if method == "HEAD" { "" } else { body };
    let answer = format!(
        "HTTP/1.1 {status} ScriptedServer\r\nContent-Length: {}\r\nETag: \"e\"\r\nLast-Modified: Sun, 06 Nov 1994 08:49:37 GMT\r\nConnection: close\r\n\r\n{sent}",
        body.len()
    );
    client.write_all(answer.as_bytes()).expect("an answer");
}
