//! No log and no output contains a secret, except the output of the command that creates a key.

use std::process::{Command, Stdio};

use tests::installation::Installation;
use tests::process::{Process, command, run_ok};
use tests::servers::Addresses;
use tests::webhook_receiver::WebhookReceiver;

use crate::redis_servers::server::Server as Redis;

const REDIS_PASSWORD: &str = "of-redis-6d0f2b";
const DATABASE_PASSWORD: &str = "of-database-91c4aa";
const S3_SECRET: &str = "of-s3-5be310/+=";
const SESSION_SECRET: &str = "of-sessions-0123456789abcdef0123456789";
const WEBHOOK_SECRET: &str = "whsec_AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA=";
const URL_SECRET: &str = "of-address-77e0d2";
/// Enables all log lines.
const LOG_ALL: [&str; 2] = [
    "--log-level",
    "trace,rdkafka=trace,librdkafka=trace,scylla=trace",
];

/// Runs a command that must succeed; returns its output.
fn run_logged(installation: &Installation, args: &[&str]) -> String {
    let mut command = logged_command(installation, args);
    let output = command.stdin(Stdio::null()).output().expect("a process");
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(output.status.success(), "{args:?}: {text}");
    text
}

/// A command that logs everything. Its environment overrides the S3 secret of the file.
fn logged_command(installation: &Installation, args: &[&str]) -> Command {
    let mut command = command(installation.data(), &[args, &LOG_ALL].concat());
    command.env("BACKSTITCH__S3__SECRET_ACCESS_KEY", S3_SECRET);
    command
}

/// Sends requests with a key in the header and in wrong places; returns the secrets that they
/// contain.
fn send_requests(address: &str, key: &str) -> Vec<String> {
    let agent = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0);
    let agent: ureq::Agent = agent.build().into();
    let overview = format!("{address}/api/v1/overview");
    let send = |request: ureq::RequestBuilder<ureq::typestate::WithoutBody>| {
        request.call().expect("an answer").status().as_u16()
    };
    let bearer = format!("Bearer {key}");
    assert_eq!(
        send(agent.get(&overview).header("authorization", &bearer)),
        200
    );
    assert_eq!(send(agent.get(&overview).header("authorization", key)), 401);
    assert_eq!(send(agent.get(format!("{overview}?key={key}"))), 401);
    let in_query = format!("{address}/api/v1/stats/plays/total?key={key}");
    let in_query = agent.get(in_query).header("authorization", &bearer);
    assert_eq!(send(in_query), 400);
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
async fn logs_contain_no_secret_on_servers() {
    let redis = Redis::start(&[]);
    redis.run(&["CONFIG", "SET", "requirepass", REDIS_PASSWORD]);
    let listener = WebhookReceiver::new(&[]);
    let config = format!(
        "redis.password = \"{REDIS_PASSWORD}\"\ndatabase.password = \"{DATABASE_PASSWORD}\"\n\
         serving.session_secret = \"{SESSION_SECRET}\"\nnotices.webhook_secret = \"{WEBHOOK_SECRET}\"\n\
         notices.webhook_url = \"{}/{URL_SECRET}\"\n",
        listener.url
    );
    let addresses = Addresses {
        redis: format!("127.0.0.1:{}", redis.port),
        ..Addresses::default()
    };
    let installation = Installation::with_addresses(&addresses, &config);
    let key = run_ok(
        installation.data(),
        &[
            "keys", "create", "--name", "one", "--scope", "admin", "--json",
        ],
    );
    let key: serde_json::Value = serde_json::from_str(&key).expect("JSON");
    let key = key["key"].as_str().expect("a key");
    let service = |args: &[&str]| Process::spawn(logged_command(&installation, args));
    let row = r#"{"id":7,"name":"Pacer","owner":42,"athlete_capacity":1}"#;
    installation.ingest("applications", row);
    let row = r#"{"id":1,"application_id":7,"athlete_id":1,"created_at":"2026-03-01T10:00:00Z"}"#;
    installation.ingest("authorizations", row);
    let serve = service(&["serve", "--listen", "127.0.0.1:0"]);
    let speed = service(&["speed"]);
    let output = serve.wait_for_output("http://127.0.0.1:").await;
    let start = output.find("http://127.0.0.1:").expect("an address");
    let end = output[start + 7..].find(|char: char| !char.is_ascii_digit() && !".:".contains(char));
    let address = output[start..start + 7 + end.unwrap_or_default()].to_owned();
    let key = key.to_owned();
    let sent = tokio::task::spawn_blocking(move || send_requests(&address, &key)).await;
    // The webhook receives a notice about a used capacity.
    let posts = tokio::task::spawn_blocking(move || listener.wait_for(1).len()).await;
    assert!(posts.expect("a post") > 0);
    let mut outputs = vec![
        ("check", run_logged(&installation, &["check"])),
        ("config", run_logged(&installation, &["config", "show"])),
        ("batch", run_logged(&installation, &["batch", "run"])),
        ("keys", run_logged(&installation, &["keys", "list"])),
    ];
    for (name, process) in [("serve", serve), ("speed", speed)] {
        let (succeeded, output) = process.end();
        assert!(succeeded, "{output:?}");
        // Otherwise there would be nothing to check.
        assert!(output[1].contains("DEBUG"), "{name}: {}", output[1]);
        outputs.push((name, output.concat()));
    }
    let mut secrets = sent.expect("requests");
    let known = [
        REDIS_PASSWORD,
        DATABASE_PASSWORD,
        S3_SECRET,
        SESSION_SECRET,
        WEBHOOK_SECRET,
        URL_SECRET,
    ];
    secrets.extend(known.map(str::to_owned));
    secrets.extend(WEBHOOK_SECRET.strip_prefix("whsec_").map(str::to_owned));
    for (name, output) in &outputs {
        for secret in &secrets {
            let line = output.lines().find(|line| line.contains(secret.as_str()));
            assert!(line.is_none(), "{name} logs {secret}: {line:?}");
        }
    }
}
