//! Servers that hang or are not as they should be, and schemas.

use std::sync::Arc;
use std::time::Duration;

use futures::TryStreamExt;
use schemas::entities::{Application, Athlete, Authorization, Effort, Entity};
use schemas::source::Source;
use stores::admin::{
    By, CanonAdmin, Change, Decided, Decision, RequestState, Requested, RequestsOf,
};
use stores::canon::{Authorized, CanonRead, CanonWrite};
use stores::keys::{Action, Keys};
use stores::sql::{ApiKeyStore, EntityStore, SqlOptions, SqlTls};
use stores::{ErrorKind, Result};
use tests::conformance::canon_rows::effort;
use tests::proxy::{Gate, Holds, Proxy};
use tests::servers;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::super::{PATIENCE, patiently};
use super::{Schema, Server};

super::on_both! {
    a_connection_that_hangs_ends
    a_server_that_is_not_there_is_named
    schemas_are_made_once
    a_changed_migration_is_refused
    what_is_wrong_is_named
    what_is_recorded_is_there_once
    a_lost_commit_is_recognized
    a_repeated_call_leaves_later_changes_alone
    statements_are_prepared_once
}

fn address(server: Server) -> String {
    match server {
        Server::Postgres => servers::postgres(),
        Server::MariaDb => servers::mariadb(),
    }
}

/// The options of a schema that is reached through a proxy.
fn through(proxy: &Proxy, schema: &Schema) -> SqlOptions {
    SqlOptions {
        host: "127.0.0.1".to_owned(),
        port: proxy.port(),
        ..schema.options.clone()
    }
}

/// No call waits for longer than it may when no more bytes come, and afterwards all goes on.
async fn a_connection_that_hangs_ends(server: Server) -> Result<()> {
    let schema = Schema::new(server).await;
    let gate = Arc::<Gate>::default();
    let proxy = Proxy::to(&address(server), &gate).await;
    let options = SqlOptions {
        connections_max: 2,
        connect_timeout_ms: 700,
        request_timeout_ms: 700,
        retry_timeout_ms: 700,
        dump_timeout_ms: 700,
        ..through(&proxy, &schema)
    };
    let canon = patiently(async || EntityStore::open(&options, &schema.namespace).await).await;
    let rows: Vec<Entity> = (0..50_000)
        .map(|id| Entity::Effort(effort(id, id, 1)))
        .collect();
    schema.canon().await?.apply(&rows, 1).await?;
    let begun = async || {
        let mut dump = canon.dump(Source::Efforts, None, 100).await?;
        dump.try_next().await?.expect("a batch");
        Ok(dump)
    };
    let mut dump = patiently(begun).await;

    gate.hold(Holds::Everything);
    let begun = Instant::now();
    for _ in 0..3 {
        let error = canon.club_members(1).await.expect_err("it hangs");
        assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
        assert!(error.to_string().contains(&proxy.address), "{error}");
    }
    let error = canon.apply(&rows[..1], 1).await.expect_err("it hangs");
    assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
    let error = loop {
        match dump.try_next().await {
            Ok(batch) => batch.expect("it hangs before the end"),
            Err(error) => break error,
        };
    };
    assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
    assert!(
        begun.elapsed() < Duration::from_secs(30),
        "{:?}",
        begun.elapsed()
    );

    gate.hold(Holds::Nothing);
    let row = Entity::Effort(Effort {
        version: 2,
        ..effort(1, 1, 1)
    });
    let rows = [row];
    patiently(async || canon.apply(&rows, 1).await).await;
    let versions = patiently(async || canon.versions(&rows).await).await;
    assert_eq!(versions, [Some(2)]);
    Ok(())
}

/// Options through a proxy whose traffic can be read.
fn in_plain_text(proxy: &Proxy, schema: &Schema) -> SqlOptions {
    SqlOptions {
        tls: SqlTls::Disable,
        connections_max: 1,
        request_timeout_ms: 5_000,
        retry_timeout_ms: 20_000,
        ..through(proxy, schema)
    }
}

/// Runs a call whose first COMMIT gets no answer, so that the call is repeated. `between` runs before the repetition.
async fn with_lost_commit<T>(
    gate: &Gate,
    call: impl Future<Output = Result<T>>,
    between: impl AsyncFnOnce() -> Result<()>,
) -> Result<T> {
    gate.hold_answer_to("COMMIT");
    let held = gate.held();
    let cutting = async {
        gate.held_since(held).await;
        // The server has committed; only its answer is lost. The next answer that is held is one to the repeated call.
        between().await.expect("another call");
        let answers = gate.held();
        gate.cut();
        gate.held_since(answers).await;
        gate.hold(Holds::Nothing);
    };
    let both = async { tokio::join!(call, cutting) };
    let (outcome, ()) = timeout(PATIENCE, both).await.expect("it ends");
    outcome
}

async fn nothing() -> Result<()> {
    Ok(())
}

/// An action of an administrator is recorded once when its COMMIT is lost.
async fn what_is_recorded_is_there_once(server: Server) -> Result<()> {
    let schema = Schema::new(server).await;
    let gate = Arc::<Gate>::default();
    let proxy = Proxy::to(&address(server), &gate).await;
    let keys = ApiKeyStore::on_server(&in_plain_text(&proxy, &schema), &schema.namespace);
    let action = |target: &str| Action {
        number: 0,
        at_ms: 1,
        actor: "a".to_owned(),
        action: "replay".to_owned(),
        target: target.to_owned(),
        detail: None,
    };
    keys.record_action(&action("before")).await?;
    let lost = action("lost");
    with_lost_commit(&gate, keys.record_action(&lost), nothing).await?;
    // Two that are alike are two.
    keys.record_action(&lost).await?;

    let actions = keys.actions(None, 10).await?;
    let targets: Vec<&str> = actions
        .iter()
        .map(|action| action.target.as_str())
        .collect();
    assert_eq!(targets, ["lost", "lost", "before"]);
    Ok(())
}

fn application(id: i64) -> Entity {
    Entity::Application(Application {
        id,
        name: "app".to_owned(),
        owner: 1.into(),
        athlete_capacity: 2,
        version: 0,
    })
}

/// A call that is repeated after a lost COMMIT returns its own outcome, not one of somebody else.
async fn a_lost_commit_is_recognized(server: Server) -> Result<()> {
    let schema = Schema::new(server).await;
    let gate = Arc::<Gate>::default();
    let proxy = Proxy::to(&address(server), &gate).await;
    let store = EntityStore::open(&in_plain_text(&proxy, &schema), &schema.namespace).await?;
    store.apply(&[application(1)], 1).await?;
    let by = By {
        actor: "a".to_owned(),
        reason: None,
    };

    let requested = with_lost_commit(&gate, store.request_capacity(1, 5, &by, 1), nothing).await?;
    let Requested::New(request) = requested else {
        panic!("{requested:?}");
    };
    let again = store.request_capacity(1, 6, &by, 1).await?;
    assert!(matches!(again, Requested::Open(_)), "{again:?}");

    let grant = Decision::Grant(None);
    let decided = with_lost_commit(&gate, store.decide(request.id, grant, &by, 2), nothing).await?;
    let Decided::Done { usage, .. } = decided else {
        panic!("{decided:?}");
    };
    assert_eq!(usage.application.athlete_capacity, 5);
    let again = store.decide(request.id, grant, &by, 2).await?;
    assert!(matches!(again, Decided::Already(_)), "{again:?}");
    assert_eq!(store.audit(1, None, 10).await?.len(), 1);

    let connected = with_lost_commit(&gate, store.authorize(1, 7, 3), nothing).await?;
    assert!(matches!(connected, Authorized::New { .. }), "{connected:?}");
    assert_eq!(store.authorize(1, 7, 3).await?, Authorized::Already);
    let usages = store.usages_of(&[1]).await?;
    let connected: Vec<Option<i64>> = usages.iter().map(|usage| usage.connected).collect();
    assert_eq!(connected, [Some(1)]);
    Ok(())
}

/// A call that is repeated after a lost COMMIT neither repeats its effect nor undoes what others did since.
async fn a_repeated_call_leaves_later_changes_alone(server: Server) -> Result<()> {
    let schema = Schema::new(server).await;
    let gate = Arc::<Gate>::default();
    let proxy = Proxy::to(&address(server), &gate).await;
    let store = EntityStore::open(&in_plain_text(&proxy, &schema), &schema.namespace).await?;
    let other = schema.canon().await?;
    store.apply(&[application(1)], 1).await?;
    let by = By {
        actor: "a".to_owned(),
        reason: None,
    };
    let all = RequestsOf {
        application_id: Some(1),
        state: None,
    };

    let refused = async || {
        let requests = other.capacity_requests(all, None, 10).await?;
        for request in requests {
            other.decide(request.id, Decision::Refuse, &by, 2).await?;
        }
        Ok(())
    };
    let requested = store.request_capacity(1, 5, &by, 1);
    let requested = with_lost_commit(&gate, requested, refused).await?;
    assert!(matches!(requested, Requested::New(_)), "{requested:?}");
    let requests = other.capacity_requests(all, None, 10).await?;
    let states: Vec<RequestState> = requests.iter().map(|request| request.state).collect();
    assert_eq!(states, [RequestState::Refused]);

    let raised = async || other.change(1, Change::capacity(4), &by, 3).await.map(drop);
    let changed = store.change(1, Change::capacity(3), &by, 3);
    let usage = with_lost_commit(&gate, changed, raised).await?;
    let capacity = usage.map(|usage| usage.application.athlete_capacity);
    assert_eq!(capacity, Some(4));
    assert_eq!(other.audit(1, None, 10).await?.len(), 2);

    store.authorize(1, 7, 4).await?;
    let connected = async || other.authorize(1, 7, 9).await.map(drop);
    with_lost_commit(&gate, store.revoke(1, 7, 5), connected).await?;
    assert_eq!(other.authorize(1, 7, 10).await?, Authorized::Already);
    Ok(())
}

/// Calls with other values send no new statements, so the caches of prepared statements stay small.
async fn statements_are_prepared_once(server: Server) -> Result<()> {
    let schema = Schema::new(server).await;
    let gate = Arc::<Gate>::default();
    let proxy = Proxy::to(&address(server), &gate).await;
    let store = EntityStore::open(&in_plain_text(&proxy, &schema), &schema.namespace).await?;
    let round = async |id: i64| {
        let athlete = |is_deleted: bool, version: i64| {
            Entity::Athlete(Athlete {
                id,
                name: None,
                gender: None,
                birth_year: None,
                weight_kg: None,
                country: None,
                is_disqualified: false,
                is_deleted,
                version,
            })
        };
        let authorization = Entity::Authorization(Authorization {
            id,
            application_id: id,
            athlete_id: id,
            created_at_us: id,
            revoked_at_us: None,
            version: 0,
        });
        store
            .apply(&[application(id), athlete(false, 0)], id)
            .await?;
        store.authorize(id, id, id).await?;
        store.apply(&[athlete(true, 1)], id).await?;
        store.apply(&[authorization], id).await?;
        // An application's own SQL puts the athlete into the outbox.
        schema.run(&format!(
            "UPDATE athletes SET is_deleted = FALSE WHERE id = {id};"
        ));
        for source in [Source::Efforts, Source::Authorizations] {
            let waiting = store.waiting(source).await?;
            let pending = store.pending(source, waiting.newest, 100).await?;
            let ids: Vec<i64> = pending.iter().map(|told| told.id).collect();
            store.notified(&ids).await?;
        }
        Result::Ok(())
    };
    for id in 1..4 {
        round(id).await?;
    }
    gate.record_requests();
    round(4).await?;
    let sent = gate.recorded_requests();
    assert!(sent.contains("COMMIT"), "{sent}");
    for text in [
        "INSERT INTO connected",
        "INSERT INTO connections",
        "INSERT INTO outbox (source, group_key, member, made_at_ms)",
    ] {
        assert!(!sent.contains(text), "prepared again: {text}\n{sent}");
    }
    Ok(())
}

/// A server that is not there is told of with its address, and nothing waits for ever.
async fn a_server_that_is_not_there_is_named(server: Server) -> Result<()> {
    let options = SqlOptions {
        port: 1,
        retry_timeout_ms: 200,
        ..server.options()
    };
    let namespace = servers::namespace();
    let opened = EntityStore::open(&options, &namespace).await;
    let error = opened.expect_err("nobody answers");
    assert_eq!(error.kind(), ErrorKind::Retry);
    assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
    let flaws = EntityStore::flaws(&options, &namespace).await?;
    assert!(flaws[0].contains("127.0.0.1:1"), "{flaws:?}");
    Ok(())
}

/// Several make a schema at once; one that is not there is no schema, and nothing makes it in passing.
async fn schemas_are_made_once(server: Server) -> Result<()> {
    let (options, namespace) = (server.options(), servers::namespace());
    for _ in 0..2 {
        let opened = EntityStore::open(&options, &namespace).await;
        let error = opened.expect_err("there is no schema");
        assert_eq!(error.kind(), ErrorKind::Fatal, "{error}");
        assert!(
            error.to_string().contains("run `backstitch migrate`"),
            "{error}"
        );
        let flaws = EntityStore::flaws(&options, &namespace).await?;
        assert!(flaws[0].contains("run `backstitch migrate`"), "{flaws:?}");
    }
    let mut making = JoinSet::new();
    for _ in 0..4 {
        let (options, namespace) = (options.clone(), namespace.clone());
        making.spawn(async move { EntityStore::migrate(&options, &namespace).await });
    }
    while let Some(made) = making.join_next().await {
        made.expect("it ends")?;
    }
    assert!(!EntityStore::migrate(&options, &namespace).await?);
    assert_eq!(
        EntityStore::flaws(&options, &namespace).await?,
        Vec::<String>::new()
    );
    EntityStore::open(&options, &namespace).await?;
    server.drop_schema(&namespace);
    Ok(())
}

/// A migration that was applied in another form is not used, and neither is an older or newer schema.
async fn a_changed_migration_is_refused(server: Server) -> Result<()> {
    let schema = Schema::new(server).await;
    for (change, back, told) in [
        (
            "UPDATE _sqlx_migrations SET version = 99 WHERE version = 2",
            "UPDATE _sqlx_migrations SET version = 2 WHERE version = 99",
            "newer",
        ),
        (
            "CREATE TABLE kept AS SELECT * FROM _sqlx_migrations WHERE version = 2;
             DELETE FROM _sqlx_migrations WHERE version = 2",
            "INSERT INTO _sqlx_migrations SELECT * FROM kept; DROP TABLE kept",
            "older",
        ),
        (
            "UPDATE _sqlx_migrations SET success = false WHERE version = 2",
            "UPDATE _sqlx_migrations SET success = true WHERE version = 2",
            "broken off",
        ),
        (
            "UPDATE _sqlx_migrations SET checksum = 'x' WHERE version = 1",
            "",
            "another form",
        ),
    ] {
        schema.run(&format!("{change};"));
        let error = schema
            .canon()
            .await
            .expect_err("it can't be used")
            .to_string();
        assert!(error.contains(told), "{error}");
        let flaws = EntityStore::flaws(&schema.options, &schema.namespace).await?;
        assert!(flaws[0].contains(told), "{flaws:?}");
        if told == "broken off" && server == Server::MariaDb {
            // There nothing is taken back, so it is run again.
            assert!(EntityStore::migrate(&schema.options, &schema.namespace).await?);
        } else if told != "older" {
            let made = EntityStore::migrate(&schema.options, &schema.namespace).await;
            assert_eq!(made.expect_err("refused").kind(), ErrorKind::Fatal);
        }
        if !back.is_empty() {
            schema.run(&format!("{back};"));
            schema.canon().await?;
        }
    }
    Ok(())
}

/// A user who may not come in, or lacks rights, is told so; a password is never repeated.
async fn what_is_wrong_is_named(server: Server) -> Result<()> {
    let schema = Schema::new(server).await;
    let name = schema.name();
    let stranger = SqlOptions {
        user: format!("{name}_nobody"),
        password: "open sesame".to_owned().into(),
        ..schema.options.clone()
    };
    let flaws = EntityStore::flaws(&stranger, &schema.namespace).await?;
    assert!(flaws[0].contains("check user and password"), "{flaws:?}");
    assert!(!flaws[0].contains("sesame"), "{flaws:?}");

    if server == Server::MariaDb {
        let collate =
            |collation: &str| schema.run(&format!("ALTER DATABASE {name} COLLATE {collation};"));
        collate("utf8mb4_general_ci");
        let flaws = EntityStore::flaws(&schema.options, &schema.namespace).await?;
        assert!(flaws[0].contains("utf8mb4_general_ci"), "{flaws:?}");
        collate("utf8mb4_bin");
    }
    let reader = SqlOptions {
        user: format!("{}_r", schema.namespace),
        ..schema.options.clone()
    };
    let user = &reader.user;
    schema.run(&match server {
        Server::Postgres => format!(
            "CREATE ROLE {user} LOGIN; GRANT USAGE ON SCHEMA {name} TO {user};
             GRANT SELECT ON ALL TABLES IN SCHEMA {name} TO {user};"
        ),
        Server::MariaDb => {
            format!("CREATE USER {user}@'%'; GRANT SELECT ON {name}.* TO {user}@'%';")
        }
    });
    let flaws = EntityStore::flaws(&reader, &schema.namespace).await;
    let canon = EntityStore::open(&reader, &schema.namespace).await?;
    let refused = canon.apply(&[Entity::Effort(effort(1, 2, 3))], 1).await;
    schema.run(&match server {
        Server::Postgres => format!("DROP OWNED BY {user}; DROP ROLE {user};"),
        Server::MariaDb => format!("DROP USER {user}@'%';"),
    });
    let flaws = flaws?;
    assert!(flaws.len() > 3, "{flaws:?}");
    assert!(
        flaws.iter().any(|flaw| flaw.contains("outbox")),
        "{flaws:?}"
    );
    let error = refused.expect_err("no right");
    assert_eq!(error.kind(), ErrorKind::Fatal, "{error}");
    assert!(error.to_string().contains("rights"), "{error}");
    Ok(())
}
