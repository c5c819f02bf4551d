//! An HTTP server with scripted responses, for cases that a real server cannot be made to produce.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::thread::JoinHandle;

use crate::webhook_receiver::read;

/// The expected request method, and the status and body of the response.
pub type ScriptedResponse = (&'static str, u16, &'static str);

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
    pub fn new(script: &'static [ScriptedResponse]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let serving = std::thread::spawn(move || {
            for response in script {
                let (client, _) = listener.accept().expect("a client");
                respond(&client, *response);
            }
        });
        Self {
            address: format!("http://{address}"),
            serving: Some(serving),
        }
    }

    /// Waits until every response was sent.
    ///
    /// # Panics
    /// If a request was not the expected one.
    pub fn end(mut self) {
        if let Some(serving) = self.serving.take() {
            serving.join().expect("the requests of the script");
        }
    }
}

/// Responds to one request and closes its connection.
fn respond(mut client: &TcpStream, (method, status, body): ScriptedResponse) {
    let (request_line, ..) = read(client).expect("a request");
    assert!(
        request_line.starts_with(method),
        "{request_line} instead of {method}"
    );
    let sent_body = if method == "HEAD" { "" } else { body };
    let response = format!(
        "HTTP/1.1 {status} ScriptedServer\r\nContent-Length: {}\r\nETag: \"e\"\r\nLast-Modified: Sun, 06 Nov 1994 08:49:37 GMT\r\nConnection: close\r\n\r\n{sent_body}",
        body.len()
    );
    client.write_all(response.as_bytes()).expect("a response");
}
