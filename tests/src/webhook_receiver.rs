//! A webhook receiver on loopback that accepts, refuses, hangs or disconnects as instructed, and
//! keeps the requests that it received.

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use serde_json::Value;
use sha2::Sha256;

/// Maximum wait for expected posts.
const WAIT: Duration = Duration::from_secs(120);

/// The reaction to a post.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    /// Responds with a status.
    Status(u16),
    /// Responds with 503 and `Retry-After` in seconds.
    RetryAfter(u64),
    /// Reads it and never responds.
    Hang,
    /// Closes the connection without a response.
    Close,
}

/// A received post.
#[derive(Debug, Clone)]
pub struct Post {
    /// Headers by lowercase name.
    pub headers: BTreeMap<String, String>,
    /// The body's bytes.
    pub body: Vec<u8>,
    /// The reaction to it.
    pub reply: Reply,
}

impl Post {
    /// Returns the header `webhook-id`.
    ///
    /// # Panics
    /// If the header is missing.
    #[must_use]
    pub fn id(&self) -> &str {
        self.headers.get("webhook-id").expect("an id")
    }

    /// Parses the body as JSON.
    ///
    /// # Panics
    /// If it is not JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("JSON")
    }

    /// Returns whether the post was accepted.
    #[must_use]
    pub const fn is_accepted(&self) -> bool {
        matches!(self.reply, Reply::Status(200..=299))
    }

    /// Returns whether one of its signatures verifies with a secret, by the receiver's algorithm.
    ///
    /// # Panics
    /// If the secret is malformed.
    #[must_use]
    pub fn is_signed(&self, secret: &str) -> bool {
        let key = secret.strip_prefix("whsec_").expect("a secret");
        let key = STANDARD.decode(key).expect("base64");
        let mut mac = Hmac::<Sha256>::new_from_slice(&key).expect("any length");
        let timestamp_s = self.headers.get("webhook-timestamp").expect("a time");
        mac.update(format!("{}.{timestamp_s}.", self.id()).as_bytes());
        mac.update(&self.body);
        let code = format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()));
        let signatures = self.headers.get("webhook-signature").expect("signatures");
        signatures.split(' ').any(|signature| signature == code)
    }
}

#[derive(Debug, Default)]
struct State {
    replies: VecDeque<Reply>,
    posts: Vec<Post>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Notified of each post.
    posted: Condvar,
}

impl Shared {
    fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A webhook receiver. Its thread ends with the test process.
#[derive(Debug, Clone)]
pub struct WebhookReceiver {
    /// The URL that it listens on.
    pub url: String,
    shared: Arc<Shared>,
}

impl WebhookReceiver {
    /// Starts a receiver. It reacts to posts by `replies` in order, and accepts all further ones.
    ///
    /// # Panics
    /// If it cannot listen.
    #[must_use]
    pub fn new(replies: &[Reply]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let state = State {
            replies: replies.iter().copied().collect(),
            posts: Vec::new(),
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            posted: Condvar::new(),
        });
        let listener_shared = Arc::clone(&shared);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let shared = Arc::clone(&listener_shared);
                std::thread::spawn(move || handle_post(client, &shared));
            }
        });
        Self {
            url: format!("http://{address}/hooks?token=open-sesame"),
            shared,
        }
    }

    /// Adds reactions to the next posts.
    pub fn reply(&self, replies: &[Reply]) {
        self.shared.locked().replies = replies.iter().copied().collect();
    }

    /// Returns all posts so far.
    #[must_use]
    pub fn posts(&self) -> Vec<Post> {
        self.shared.locked().posts.clone()
    }

    /// Waits for this many posts and returns all of them.
    ///
    /// # Panics
    /// If they do not arrive within two minutes.
    #[must_use]
    pub fn wait_for(&self, posts: usize) -> Vec<Post> {
        let too_few = |state: &mut State| state.posts.len() < posts;
        let posted = &self.shared.posted;
        let waited = posted.wait_timeout_while(self.shared.locked(), WAIT, too_few);
        let (state, outcome) = waited.unwrap_or_else(PoisonError::into_inner);
        assert!(!outcome.timed_out(), "{posts} posts, not {:?}", state.posts);
        state.posts.clone()
    }
}

/// Handles one post and closes its connection.
fn handle_post(mut client: TcpStream, shared: &Shared) {
    let Some((_, headers, body)) = read(&client) else {
        return;
    };
    let reply = {
        let mut state = shared.locked();
        let reply = state.replies.pop_front().unwrap_or(Reply::Status(204));
        state.posts.push(Post {
            headers,
            body,
            reply,
        });
        reply
    };
    shared.posted.notify_all();
    let (status, retry_header) = match reply {
        Reply::Status(status) => (status, String::new()),
        Reply::RetryAfter(seconds) => (503, format!("Retry-After: {seconds}\r\n")),
        Reply::Hang => {
            // Blocks until the client disconnects.
            drop(client.read(&mut [0]));
            return;
        }
        Reply::Close => return,
    };
    let response = format!(
        "HTTP/1.1 {status} Scripted\r\nContent-Length: 0\r\n{retry_header}Connection: close\r\n\r\n"
    );
    // A killed client does not read the response.
    drop(client.write_all(response.as_bytes()));
}

/// Returns the request line, the headers and the body of a request, or `None` if the connection
/// breaks.
pub(crate) fn read(client: &TcpStream) -> Option<(String, BTreeMap<String, String>, Vec<u8>)> {
    let mut request = BufReader::new(client);
    let (mut request_line, mut line, mut headers) = (String::new(), String::new(), BTreeMap::new());
    request.read_line(&mut request_line).ok()?;
    loop {
        line.clear();
        request.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(':') else {
            break;
        };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let bytes = headers.get("content-length").map_or("0", String::as_str);
    let mut body = vec![0; bytes.parse().ok()?];
    request.read_exact(&mut body).ok()?;
    Some((request_line, headers, body))
}
