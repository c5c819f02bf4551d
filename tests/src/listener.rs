//! A listener for webhooks on loopback that takes, refuses, hangs or hangs up as it is told, and
//! keeps what it was sent.

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use serde_json::Value;
use sha2::Sha256;

/// No client waits so long for an answer.
const HANG: Duration = Duration::from_secs(30);

/// What becomes of a post.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    /// It is answered with a status.
    Status(u16),
    /// It is answered with 503 and `Retry-After`, in seconds.
    After(u64),
    /// It is read and never answered.
    Hang,
    /// The connection is closed unanswered.
    Close,
}

/// A post.
#[derive(Debug, Clone)]
pub struct Post {
    /// Headers by their names in small letters.
    pub headers: BTreeMap<String, String>,
    /// The body's bytes.
    pub body: Vec<u8>,
    /// What became of it.
    pub reply: Reply,
}

impl Post {
    /// The header `webhook-id`.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn id(&self) -> &str {
        self.headers.get("webhook-id").expect("an id")
    }

    /// The body as JSON.
    ///
    /// # Panics
    /// If it is none.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("JSON")
    }

    /// Whether it was taken.
    #[must_use]
    pub const fn is_taken(&self) -> bool {
        matches!(self.reply, Reply::Status(200..=299))
    }

    /// Whether one of its signatures was made with a secret, as who gets a webhook finds out.
    ///
    /// # Panics
    /// If the secret is none.
    #[must_use]
    pub fn is_signed(&self, secret: &str) -> bool {
        let key = secret.strip_prefix("whsec_").expect("a secret");
        let key = STANDARD.decode(key).expect("base64");
        let mut mac = Hmac::<Sha256>::new_from_slice(&key).expect("any length");
        let at_s = self.headers.get("webhook-timestamp").expect("a time");
        mac.update(format!("{}.{at_s}.", self.id()).as_bytes());
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

/// A listener. Its thread ends with the test's process.
#[derive(Debug, Clone)]
pub struct Listener {
    /// Where it listens.
    pub url: String,
    state: Arc<Mutex<State>>,
}

impl Listener {
    /// Starts it. Posts become what `replies` say, one after the other, and are taken once there are no more.
    ///
    /// # Panics
    /// If it can't listen.
    #[must_use]
    pub fn new(replies: &[Reply]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let state = State {
            replies: replies.iter().copied().collect(),
            posts: Vec::new(),
        };
        let state = Arc::new(Mutex::new(state));
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let state = Arc::clone(&shared);
                std::thread::spawn(move || take(client, &state));
            }
        });
        Self {
            url: format!("http://{address}/hooks?token=open-sesame"),
            state,
        }
    }

    /// What becomes of the next posts.
    pub fn reply(&self, replies: &[Reply]) {
        locked(&self.state).replies = replies.iter().copied().collect();
    }

    /// All posts so far.
    #[must_use]
    pub fn posts(&self) -> Vec<Post> {
        locked(&self.state).posts.clone()
    }

    /// The posts, once so many have come.
    ///
    /// # Panics
    /// If they don't come within half a minute.
    #[must_use]
    pub fn wait_for(&self, posts: usize) -> Vec<Post> {
        let until = Instant::now() + Duration::from_secs(30);
        loop {
            let found = self.posts();
            if found.len() >= posts {
                return found;
            }
            assert!(Instant::now() < until, "{posts} posts, not {found:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn locked(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes one post of a connection, which ends with it.
fn take(mut client: TcpStream, state: &Mutex<State>) {
    let Some((headers, body)) = read(&client) else {
        return;
    };
    let reply = {
        let mut state = locked(state);
        let reply = state.replies.pop_front().unwrap_or(Reply::Status(204));
        state.posts.push(Post {
            headers,
            body,
            reply,
        });
        reply
    };
    let (status, more) = match reply {
        Reply::Status(status) => (status, String::new()),
        Reply::After(seconds) => (503, format!("Retry-After: {seconds}\r\n")),
        Reply::Hang => return std::thread::sleep(HANG),
        Reply::Close => return,
    };
    let answer =
        format!("HTTP/1.1 {status} Said\r\nContent-Length: 0\r\n{more}Connection: close\r\n\r\n");
    // Who was killed does not read it.
    drop(client.write_all(answer.as_bytes()));
}

/// Headers and body of a request; nothing if it breaks off.
fn read(client: &TcpStream) -> Option<(BTreeMap<String, String>, Vec<u8>)> {
    let mut request = BufReader::new(client);
    let (mut line, mut headers) = (String::new(), BTreeMap::new());
    request.read_line(&mut line).ok()?;
    loop {
        line.clear();
        request.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(':') else {
            break;
        };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let mut body = vec![0; headers.get("content-length")?.parse().ok()?];
    request.read_exact(&mut body).ok()?;
    Some((headers, body))
}
