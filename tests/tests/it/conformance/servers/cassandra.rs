//! Cassandra.

use std::time::{Duration, Instant};

use schemas::source::Source;
use stores::cassandra::{Cassandra, CassandraOptions};
use stores::lease::Leases;
use stores::namespace::Namespace;
use stores::records::RecordsRead;
use stores::views::ViewsWrite;
use stores::{ErrorKind, Result, Stores};
use tests::certificates::Certificates;
use tests::dedicated_servers::DedicatedServer;
use tests::servers;

use super::embedded::Folder;
use super::{Stage, WAIT_MAX};

/// A keyspace, with a data folder for the other stores.
struct Keyspace {
    namespace: Namespace,
    folder: Folder,
}

fn options() -> CassandraOptions {
    servers::cassandra_options(&servers::cassandra())
}

impl Keyspace {
    async fn open(&self) -> Result<Cassandra> {
        Cassandra::open(&options(), &self.namespace).await
    }
}

impl Stage for Keyspace {
    async fn create() -> Self {
        let namespace = servers::namespace();
        let created = Cassandra::migrate(&options(), &namespace).await;
        assert!(created.expect("a keyspace"), "the keyspace is new");
        Self {
            namespace,
            folder: Folder::create().await,
        }
    }

    async fn ports(&self) -> Result<Stores> {
        let cassandra = self.open().await?;
        Ok(Stores {
            views: std::sync::Arc::new(cassandra.views()),
            achievements: std::sync::Arc::new(cassandra.achievements()),
            counts: std::sync::Arc::new(cassandra.counts()),
            leases: std::sync::Arc::new(cassandra.leases()),
            erasures: std::sync::Arc::new(cassandra.records()),
            records: std::sync::Arc::new(cassandra.records()),
            ..self.folder.ports().await?
        })
    }

    async fn clear(self) -> Result<()> {
        Cassandra::remove(&options(), &self.namespace).await
    }
}

super::laws_of! { Keyspace; runs views view_scans versions achievements counts records reconciliations erasures lease }

/// The keyspace is created once, also by two processes at once. Missing tables are reported.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_keyspace_is_created_once() -> Result<()> {
    let namespace = servers::namespace();
    let error = Cassandra::open(&options(), &namespace).await;
    let error = error.expect_err("a missing keyspace").to_string();
    assert!(error.contains("run `backstitch migrate`"), "{error}");
    let diagnostics = Cassandra::diagnostics(&options(), &namespace).await?;
    assert!(
        diagnostics[0].contains("run `backstitch migrate`"),
        "{diagnostics:?}"
    );
    let options = options();
    let (first, second) = tokio::join!(
        Cassandra::migrate(&options, &namespace),
        Cassandra::migrate(&options, &namespace)
    );
    assert!(first? || second?, "neither created it");
    assert!(!Cassandra::migrate(&options, &namespace).await?);
    assert_eq!(
        Cassandra::diagnostics(&options, &namespace).await?,
        Vec::<String>::new()
    );
    Cassandra::open(&options, &namespace).await?;
    Cassandra::remove(&options, &namespace).await
}

/// The partition of run records does not grow forever.
#[tokio::test]
async fn old_runs_are_deleted() -> Result<()> {
    let namespace = servers::namespace();
    Cassandra::migrate(&options(), &namespace).await?;
    let views = Cassandra::open(&options(), &namespace).await?.views();
    tests::conformance::runs::old_runs_are_deleted(&views.keeping_runs(70)).await?;
    Cassandra::remove(&options(), &namespace).await
}

/// The lease of a dead holder expires. A holder that is still alive notices the loss before that.
#[tokio::test]
async fn a_lease_outlives_its_holder_briefly() -> Result<()> {
    let namespace = servers::namespace();
    let short_lease = CassandraOptions {
        lease_ms: 10_000,
        ..options()
    };
    Cassandra::migrate(&short_lease, &namespace).await?;
    let leases = Cassandra::open(&short_lease, &namespace).await?.leases();
    // Shutting down the runtime also ends the task that renews the lease, as the death of a process
    // does.
    let victim_options = short_lease.clone();
    let victim_namespace = namespace.clone();
    let dead = std::thread::spawn(move || {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let lease = runtime.block_on(async {
            let leases = Cassandra::open(&victim_options, &victim_namespace)
                .await?
                .leases();
            leases.acquire("work", "victim").await
        });
        runtime.shutdown_background();
        lease
    });
    let dead = dead.join().expect("a thread that ends")?;
    let _dead = dead.expect("the lease");
    let refused = leases.acquire("work", "heir").await?;
    let refused = refused.expect_err("a lease that has not expired");
    assert!(refused.starts_with("victim (since 20"), "{refused}");
    let started = Instant::now();
    let lease = loop {
        if let Ok(lease) = leases.acquire("work", "heir").await? {
            break lease;
        }
        assert!(started.elapsed() < WAIT_MAX, "the lease never expires");
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    // Without renewal the holder considers the lease lost after eight seconds.
    tokio::time::sleep(Duration::from_secs(9)).await;
    assert!(!lease.lost().is_cancelled(), "the renewed lease was lost");
    let refused = leases.acquire("work", "somebody").await?;
    assert!(refused.is_err(), "the lease was free");
    lease.release().await;
    Cassandra::remove(&short_lease, &namespace).await
}

/// Calls end in time when a server accepts connections and does not answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hanging_server_is_reported() -> Result<()> {
    let namespace = servers::namespace();
    Cassandra::migrate(&options(), &namespace).await?;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port");
    let hanging = CassandraOptions {
        nodes: listener.local_addr().expect("an address").to_string(),
        request_timeout_ms: 500,
        retry_timeout_ms: 500,
        connect_timeout_ms: 500,
        ..options()
    };
    // The server accepts connections and does not answer.
    let started = Instant::now();
    let error = Cassandra::open(&hanging, &namespace).await;
    let error = error.expect_err("no message");
    assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
    assert!(error.to_string().contains(&hanging.nodes), "{error}");
    assert!(started.elapsed() < Duration::from_secs(30), "{error}");
    Cassandra::remove(&options(), &namespace).await
}

/// Requests wait for the client's concurrency limit as long as others are answered. This wait does
/// not count as the server's time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_beyond_the_concurrency_limit_succeed() -> Result<()> {
    let namespace = servers::namespace();
    Cassandra::migrate(&options(), &namespace).await?;
    // Executed one by one, they take longer than a request may take with its retries.
    let sequential = CassandraOptions {
        in_flight_max: 1,
        request_timeout_ms: 1_000,
        retry_timeout_ms: 0,
        ..options()
    };
    let cassandra = Cassandra::open(&sequential, &namespace).await?;
    let records = cassandra.records();
    let reads = (0..4_000).map(|_| records.get("scope", "name"));
    for read in futures::future::join_all(reads).await {
        assert_eq!(read?, None);
    }
    Cassandra::remove(&options(), &namespace).await
}

/// Errors of unusable options say what to do, and contain no secret.
#[tokio::test]
async fn wrong_options_are_named() {
    let namespace = servers::namespace();
    let wrong = [
        CassandraOptions {
            consistency: "some".to_owned(),
            ..options()
        },
        CassandraOptions {
            nodes: " , ".to_owned(),
            ..options()
        },
        CassandraOptions {
            tls: true,
            password: "open sesame".to_owned().into(),
            ..options()
        },
    ];
    for options in wrong {
        let error = Cassandra::open(&options, &namespace).await;
        let error = error.expect_err("an unusable option");
        assert_eq!(error.kind(), ErrorKind::Fatal, "{error}");
        assert!(
            !format!("{error} {options:?}").contains("sesame"),
            "{error}"
        );
    }
}

/// The client connects only to a node whose certificate the configured authority signed, and the
/// node accepts only the right password. Errors give the reason and no password.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn untrusted_nodes_and_wrong_passwords_are_refused() -> Result<()> {
    let certificates = Certificates::generate();
    let cassandra = DedicatedServer::secure_cassandra(&certificates.file("both.pem"));
    let right = CassandraOptions {
        nodes: cassandra.address(),
        user: "cassandra".to_owned(),
        password: "cassandra".to_owned().into(),
        tls: true,
        ca_file: certificates.file("ca.pem"),
        ..CassandraOptions::default()
    };
    let namespace = servers::namespace();
    // The server creates the user shortly after it starts to answer.
    let started = Instant::now();
    let created = loop {
        match Cassandra::migrate(&right, &namespace).await {
            Err(error) if started.elapsed() > Duration::from_secs(60) => return Err(error),
            Err(_) => tokio::time::sleep(Duration::from_millis(500)).await,
            Ok(created) => break created,
        }
    };
    assert!(created);
    let diagnostics = Cassandra::diagnostics(&right, &namespace).await?;
    assert_eq!(diagnostics, Vec::<String>::new());
    let views = Cassandra::open(&right, &namespace).await?.views();
    let proposed = views.propose(Source::Plays, 1, &[], "token", 1).await?;
    assert_eq!(proposed.epoch, 1);

    let password = "not-the-password";
    let with = |password: &str, file: &str| CassandraOptions {
        password: password.to_owned().into(),
        ca_file: certificates.file(file),
        ..right.clone()
    };
    for (options, expected) in [
        (with(password, "ca.pem"), "user or password"),
        (with("cassandra", "other.pem"), "certificate"),
        (with("cassandra", "missing.pem"), "missing.pem"),
    ] {
        let started = Instant::now();
        let refused = Cassandra::open(&options, &namespace).await;
        let error = refused.expect_err("an authentication error");
        let message = error.to_string();
        assert!(
            message.contains(expected) && !message.contains(password),
            "{message}"
        );
        assert_eq!(error.kind(), ErrorKind::Fatal, "{message}");
        assert!(started.elapsed() < Duration::from_secs(30), "{message}");
    }
    Ok(())
}
