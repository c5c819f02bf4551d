//! A server that gives answers by a script, where a real one can't be made to.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::thread::JoinHandle;

use crate::listener::read;

/// A request's method, and what is answered to it: status and body.
pub type Answer = (&'static str, u16, &'static str);

/// A server of HTTP on loopback that expects some requests, one after the other.
#[derive(Debug)]
pub struct Scripted {
    /// Where it listens, as `http://HOST:PORT`.
    pub address: String,
    serving: Option<JoinHandle<()>>,
}

impl Scripted {
    /// Starts it.
    ///
    /// # Panics
    /// If it can't listen.
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

    /// Waits until every answer was given.
    ///
    /// # Panics
    /// If a request was not the expected one.
    pub fn end(mut self) {
        if let Some(serving) = self.serving.take() {
            serving.join().expect("the requests of the script");
        }
    }
}

/// Answers one request on a connection, which ends with it.
fn give(mut client: &TcpStream, (method, status, body): Answer) {
    let (first, ..) = read(client).expect("a request");
    assert!(first.starts_with(method), "{first} instead of {method}");
    let sent = if method == "HEAD" { "" } else { body };
    let answer = format!(
        "HTTP/1.1 {status} Scripted\r\nContent-Length: {}\r\nETag: \"e\"\r\nLast-Modified: Sun, 06 Nov 1994 08:49:37 GMT\r\nConnection: close\r\n\r\n{sent}",
        body.len()
    );
    client.write_all(answer.as_bytes()).expect("an answer");
}
