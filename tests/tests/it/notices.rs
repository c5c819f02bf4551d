//! Notices about capacities reach the log and a webhook once each, even if the webhook fails.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use schemas::clock::Clock;
use schemas::source::Source;
use serde_json::{Value, json};
use stores::Secret;
use stores::log::LogRead;
use stores::notices::CAPACITY_NOTICES;
use stores::webhook::{NoticesOptions, Webhook};
use tests::http::Client;
use tests::installation::Installation;
use tests::process::{CONFIG, Process, Server, run_ok};
use tests::servers::Addresses;
use tests::topic::messages;
use tests::webhook_receiver::{Post, Reply, WebhookReceiver};
use tests::world::World;
use tokio_util::sync::CancellationToken;

pub(super) const SECRET: &str = "whsec_AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA=";
const PREVIOUS_SECRET: &str = "whsec_IB8eHRwbGhkYFxYVFBMSERAPDg0MCwoJCAcGBQQDAgE=";
const APPLICATION: &str = "/api/v1/applications/7";

fn notices_config(url: &str) -> String {
    format!(
        "[notices]\nwebhook_url = \"{url}\"\nwebhook_secret = \"{SECRET}\"\nwebhook_secret_before = \"{PREVIOUS_SECRET}\"\nrequest_timeout_ms = 5000\nretry_max_ms = 1000\n"
    )
}

#[test]
fn notices_reach_a_webhook_embedded() {
    let listener = WebhookReceiver::new(&[]);
    let installation = Installation::embedded();
    std::fs::create_dir_all(installation.data()).expect("a folder");
    std::fs::write(
        installation.data().join(CONFIG),
        notices_config(&listener.url),
    )
    .expect("a configuration");
    deliver_notices(&installation, &listener, 1);
}

#[test]
fn notices_reach_a_webhook_on_servers() {
    let listener = WebhookReceiver::new(&[]);
    let config = notices_config(&listener.url);
    let installation = Installation::with_addresses(&Addresses::default(), &config);
    deliver_notices(&installation, &listener, 2);
}

/// With a webhook that at first refuses, hangs up, hangs and redirects, and `processes` speed
/// layers.
fn deliver_notices(installation: &Installation, listener: &WebhookReceiver, processes: usize) {
    let row = json!({"id": 7, "name": "Pacer", "owner": 42, "athlete_capacity": 10}).to_string();
    installation.ingest("applications", &row);
    let start = |_| Process::start(installation.data(), &["speed"]);
    let layers: Vec<Process> = (0..processes).map(start).collect();
    let server = Server::start(installation.data(), &[]);
    let client = &server.client;
    let faults = [
        Reply::Status(500),
        Reply::Close,
        Reply::Hang,
        Reply::Status(302),
        Reply::RetryAfter(1),
    ];
    listener.reply(&faults);
    for athlete in 1..=10 {
        assert_eq!(connect(client, athlete), 201);
    }
    let posts = listener.wait_for(faults.len() + 3);
    let numbers = ["threshold_percent", "connected_athletes"];
    let numbers = |post: &Post| numbers.map(|name| post.json()[name].as_i64().expect("a number"));
    let mut deliveries: Vec<_> = posts
        .iter()
        .filter(|post| post.is_accepted())
        .map(numbers)
        .collect();
    deliveries.sort_unstable();
    assert_eq!(deliveries, [[80, 8], [90, 9], [100, 10]]);

    // Athletes who come and go under the same capacity cause no notice; another capacity does.
    assert_eq!(
        client.delete(&format!("{APPLICATION}/authorizations/10")).0,
        204
    );
    assert_eq!(connect(client, 10), 201);
    let set_capacity = |capacity: i64| {
        let body = json!({"athlete_capacity": capacity}).to_string();
        assert_eq!(client.patch(APPLICATION, body.as_bytes()).0, 200);
    };
    set_capacity(12);
    let posts = listener.wait_for(faults.len() + 4);
    assert_eq!(numbers(&posts[faults.len() + 3]), [80, 10]);
    listener.reply(&[Reply::Status(410)]);
    set_capacity(10);
    let _posts = listener.wait_for(faults.len() + 7);
    let notices = wait_settled(client, 7);
    let failed: Vec<&Value> = notices
        .iter()
        .filter(|n| !n["failed_at"].is_null())
        .collect();
    assert_eq!(failed.len(), 1, "{notices:?}");
    let error = failed[0]["error"].as_str().expect("a reason");
    assert!(error.contains("410") && failed[0]["tries"] == 1, "{error}");
    for layer in layers {
        let (succeeded, message) = layer.end();
        assert!(succeeded, "{message:?}");
        assert!(!message.concat().contains("sesame"), "{message:?}");
    }
    run_ok(installation.data(), &["speed", "--until-caught-up"]);
    let posts = listener.posts();
    assert_eq!(posts.len(), faults.len() + 7, "{posts:?}");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let log =
        runtime.block_on(async { read_logged(&*installation.world().await.stores.log).await });
    assert_equal_to_log(&posts, &log, 7);
}

fn connect(client: &Client, athlete: i64) -> u16 {
    let body = json!({"athlete_id": athlete}).to_string();
    let path = format!("{APPLICATION}/authorizations");
    client.post(&path, body.as_bytes()).0
}

/// The notices, once there are `count` and each is delivered or given up.
fn wait_settled(client: &Client, count: usize) -> Vec<Value> {
    for _ in 0..2_400 {
        let shown = client.get_json(&format!("{APPLICATION}/capacity-notices"));
        let shown = shown["notices"].as_array().expect("notices").clone();
        let is_settled = |notice: &Value| {
            !notice["logged_at"].is_null()
                && notice["delivered_at"].is_null() != notice["failed_at"].is_null()
        };
        if shown.len() == count && shown.iter().all(is_settled) {
            return shown;
        }
        #[expect(clippy::disallowed_methods, reason = "another process works")]
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("notices are not settled");
}

/// Every request is signed and equals the log's notice with its id. The log has `count` notices,
/// each once.
fn assert_equal_to_log(posts: &[Post], log: &[Value], count: usize) {
    let by_id = |value: &Value| {
        (
            value["id"].as_str().expect("an id").to_owned(),
            value.clone(),
        )
    };
    let ids: BTreeMap<String, Value> = log.iter().map(by_id).collect();
    assert_eq!((ids.len(), log.len()), (count, count), "{log:?}");
    let mut deliveries = BTreeMap::new();
    for post in posts {
        assert!(
            post.is_signed(SECRET) && post.is_signed(PREVIOUS_SECRET),
            "{post:?}"
        );
        assert_eq!(ids.get(post.id()), Some(&post.json()));
        assert_eq!(post.json()["type"], "capacity.threshold");
        assert_eq!(post.json()["application_id"], 7);
        assert_eq!(post.json()["name"], "Pacer");
        *deliveries.entry(post.id().to_owned()).or_insert(0) += usize::from(post.is_accepted());
    }
    assert!(
        deliveries.values().all(|deliveries| *deliveries <= 1),
        "{deliveries:?}"
    );
}

async fn read_logged(log: &dyn LogRead) -> Vec<Value> {
    let partitions = messages(log, CAPACITY_NOTICES).await.expect("the log");
    partitions
        .into_iter()
        .flatten()
        .map(|(_, notice)| notice)
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_after_delivery_delivers_again_embedded() {
    crash_after_claim(World::new().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_after_delivery_delivers_again_on_servers() {
    crash_after_claim(World::on_servers().await).await;
}

/// A process that claimed a notice and died keeps it until the claim expires; then the notice is
/// delivered under the same id.
#[expect(clippy::too_many_lines, reason = "one scenario")]
async fn crash_after_claim(mut world: World) {
    let listener = WebhookReceiver::new(&[Reply::Hang; 3]);
    let options = NoticesOptions {
        webhook_url: Secret::from(listener.url.clone()),
        webhook_secret: Secret::from(SECRET.to_owned()),
        request_timeout_ms: 5_000,
        ..NoticesOptions::default()
    };
    let hook = Webhook::from_options(&options)
        .expect("options")
        .expect("a hook");
    world.stores.hook = Some(Arc::new(hook));
    let row = json!({"id": 7, "name": "Pacer", "owner": 42, "athlete_capacity": 1});
    world
        .ingest_into(Source::Applications, &[row.to_string()])
        .await;
    let entity_store = Arc::clone(&world.stores.entities);
    entity_store
        .authorize(7, 1, world.clock.now_ms())
        .await
        .expect("connecting");
    let speed = world.speed_of(Source::Authorizations).await;
    let posted = async {
        while listener.posts().len() < 3 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        ended = speed.run(true, CancellationToken::new()) => panic!("{ended:?}"),
        () = posted => {}
    }
    let catch_up_later = async |later_ms: i64| {
        world.clock.set_ms(world.clock.now_ms() + later_ms);
        let report = speed.run(true, CancellationToken::new()).await;
        report.expect("catching up");
        let waiting = entity_store.pending_notices(world.clock.now_ms()).await;
        let waiting = waiting.expect("the store");
        (listener.posts().len(), waiting.all)
    };
    assert_eq!(catch_up_later(0).await, (3, 3));
    assert_eq!(catch_up_later(101_000).await, (6, 0));
    assert_eq!(catch_up_later(101_000).await, (6, 0));
    let posts = listener.posts();
    let mut deliveries: BTreeMap<&str, usize> = BTreeMap::new();
    for post in &posts {
        *deliveries.entry(post.id()).or_default() += 1;
    }
    assert!(
        deliveries.values().all(|deliveries| *deliveries == 2),
        "{deliveries:?}"
    );
    assert!(
        posts
            .iter()
            .all(|post| post.is_signed(SECRET) && !post.is_signed(PREVIOUS_SECRET))
    );

    // A notice that is older than the delivery limit is given up, but is in the log.
    listener.reply(&[Reply::Status(500); 9]);
    let audit = stores::admin::AuditContext {
        actor: "me".to_owned(),
        reason: None,
    };
    let change = stores::admin::ApplicationChange::capacity(0);
    entity_store
        .change_application(7, change, &audit, world.clock.now_ms())
        .await
        .expect("changing");
    assert_eq!(catch_up_later(3 * 86_400_000).await, (7, 0));
    let newest = entity_store
        .notices(None, None, 1)
        .await
        .expect("the store");
    assert!(
        newest[0].failed_at_ms.is_some() && newest[0].last_error.is_some(),
        "{newest:?}"
    );
    let log = read_logged(&*world.stores.log).await;
    let ids = |values: &[Value]| {
        let id = |value: &Value| value["id"].as_str().expect("an id").to_owned();
        values
            .iter()
            .map(id)
            .collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(ids(&log).len(), 4, "{log:?}");
}
