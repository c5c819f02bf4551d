//! Secrets are in no log, whatever is logged, and in no output but that of the command that makes a key.

use std::process::{Command, Stdio};

use tests::listener::Listener;
use tests::place::Place;
use tests::process::{Process, command, done};
use tests::servers::Addresses;

use crate::redis_servers::server::Server as Redis;

const OF_REDIS: &str = "of-redis-6d0f2b";
const OF_DATABASE: &str = "of-database-91c4aa";
const OF_S3: &str = "of-s3-5be310/+=";
const OF_SESSIONS: &str = "of-sessions-0123456789abcdef0123456789";
const OF_WEBHOOK: &str = "whsec_AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA=";
const IN_ADDRESS: &str = "of-address-77e0d2";
/// Everything that can be logged is.
const EVERYTHING: [&str; 2] = [
    "--log-level",
    "trace,rdkafka=trace,librdkafka=trace,scylla=trace",
];

/// A process that must have ended well; what it said.
fn ended(place: &Place, args: &[&str]) -> String {
    let mut command = logging(place, args);
    let output = command.stdin(Stdio::null()).output().expect("a process");
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(output.status.success(), "{args:?}: {said}");
    said
}

/// A command that logs everything; what it is told of S3 stands above what the file says.
fn logging(place: &Place, args: &[&str]) -> Command {
    let mut command = command(place.data(), &[args, &EVERYTHING].concat());
    command.env("BACKSTITCH__S3__SECRET_ACCESS_KEY", OF_S3);
    command
}

/// Requests with a key where it belongs, and where it does not; the secrets that came of them.
fn ask(address: &str, key: &str) -> Vec<String> {
    let agent = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0);
    let agent: ureq::Agent = agent.build().into();
    let overview = format!("{address}/api/v1/overview");
    let send = |of: ureq::RequestBuilder<ureq::typestate::WithoutBody>| {
        of.call().expect("an answer").status().as_u16()
    };
    let bearer = format!("Bearer {key}");
    assert_eq!(
        send(agent.get(&overview).header("authorization", &bearer)),
        200
    );
    assert_eq!(send(agent.get(&overview).header("authorization", key)), 401);
    assert_eq!(send(agent.get(format!("{overview}?key={key}"))), 401);
    let elsewhere = format!("{address}/api/v1/stats/plays/total?key={key}");
    let elsewhere = agent.get(elsewhere).header("authorization", &bearer);
    assert_eq!(send(elsewhere), 400);
    let form = format!("key={key}&next=%2Fpipeline");
    let signed_in = agent
        .post(format!("{address}/signin"))
        .send(form.as_bytes());
    let signed_in = signed_in.expect("an answer");
    let cookie = signed_in.headers().get("set-cookie").expect("a cookie");
    let cookie = cookie
        .to_str()
        .expect("text")
        .split(';')
        .next()
        .unwrap_or_default();
    let page = agent
        .get(format!("{address}/pipeline"))
        .header("cookie", cookie);
    assert_eq!(send(page), 200);
    let (_, code) = cookie.rsplit_once('.').expect("a code");
    vec![key.to_owned(), code.to_owned()]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_log_tells_a_secret_on_servers() {
    let redis = Redis::start(&[]);
    redis.ask(&["CONFIG", "SET", "requirepass", OF_REDIS]);
    let listener = Listener::new(&[]);
    let more = format!(
        "redis.password = \"{OF_REDIS}\"\ndatabase.password = \"{OF_DATABASE}\"\n\
         serving.session_secret = \"{OF_SESSIONS}\"\nnotices.webhook_secret = \"{OF_WEBHOOK}\"\n\
         notices.webhook_url = \"{}/{IN_ADDRESS}\"\n",
        listener.url
    );
    let at = Addresses {
        redis: format!("127.0.0.1:{}", redis.port),
        ..Addresses::default()
    };
    let place = Place::on_these(&at, &more);
    let key = done(
        place.data(),
        &[
            "keys", "create", "--name", "one", "--scope", "admin", "--json",
        ],
    );
    let key: serde_json::Value = serde_json::from_str(&key).expect("JSON");
    let key = key["key"].as_str().expect("a key");
    let service = |args: &[&str]| Process::of(logging(&place, args));
    let row = r#"{"id":7,"name":"Pacer","owner":42,"athlete_capacity":1}"#;
    place.ingest("applications", row);
    let row = r#"{"id":1,"application_id":7,"athlete_id":1,"created_at":"2026-03-01T10:00:00Z"}"#;
    place.ingest("authorizations", row);
    let serve = service(&["serve", "--listen", "127.0.0.1:0"]);
    let speed = service(&["speed"]);
    let said = serve.until_said("http://127.0.0.1:").await;
    let at = said.find("http://127.0.0.1:").expect("an address");
    let end = said[at + 7..].find(|char: char| !char.is_ascii_digit() && !".:".contains(char));
    let address = said[at..at + 7 + end.unwrap_or_default()].to_owned();
    let key = key.to_owned();
    let asked = tokio::task::spawn_blocking(move || ask(&address, &key)).await;
    // A notice that a capacity is in use reaches the webhook.
    let posts = tokio::task::spawn_blocking(move || listener.wait_for(1).len()).await;
    assert!(posts.expect("a post") > 0);
    let mut all = vec![
        ("check", ended(&place, &["check"])),
        ("config", ended(&place, &["config", "show"])),
        ("batch", ended(&place, &["batch", "run"])),
        ("keys", ended(&place, &["keys", "list"])),
    ];
    for (name, process) in [("serve", serve), ("speed", speed)] {
        let (succeeded, said) = process.end();
        assert!(succeeded, "{said:?}");
        // Else nothing would be looked at.
        assert!(said[1].contains("DEBUG"), "{name}: {}", said[1]);
        all.push((name, said.concat()));
    }
    let mut secrets = asked.expect("requests");
    let known = [
        OF_REDIS,
        OF_DATABASE,
        OF_S3,
        OF_SESSIONS,
        OF_WEBHOOK,
        IN_ADDRESS,
    ];
    secrets.extend(known.map(str::to_owned));
    secrets.extend(OF_WEBHOOK.strip_prefix("whsec_").map(str::to_owned));
    for (name, said) in &all {
        for secret in &secrets {
            let line = said.lines().find(|line| line.contains(secret.as_str()));
            assert!(line.is_none(), "{name} tells {secret}: {line:?}");
        }
    }
}
