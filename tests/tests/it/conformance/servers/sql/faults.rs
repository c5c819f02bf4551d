//! Servers that hang or have wrong schemas.

use std::sync::Arc;
use std::time::Duration;

use futures::TryStreamExt;
use schemas::entities::{Application, Athlete, Authorization, Effort, Entity};
use schemas::source::Source;
use stores::admin::{
    ApplicationChange, AuditContext, CapacityRequestFilter, CapacityRequestOutcome,
    DecisionOutcome, EntityAdmin, RequestDecision, RequestState,
};
use stores::entities::{AuthorizeOutcome, EntityRead, EntityWrite};
use stores::keys::{AdminAction, Keys};
use stores::sql::{ApiKeyStore, EntityStore, SqlOptions, SqlTls};
use stores::{ErrorKind, Result};
use tests::conformance::entity_rows::effort;
use tests::proxy::{Gate, Holds, Proxy};
use tests::servers;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::super::{WAIT_MAX, retry_until_ok};
use super::{Schema, Server};

super::on_both! {
    a_hanging_connection_times_out
    an_unreachable_server_is_named
    schemas_are_created_once
    a_changed_migration_is_refused
    wrong_logins_are_named
    actions_are_recorded_once
    a_lost_commit_is_detected
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
fn proxied_options(proxy: &Proxy, schema: &Schema) -> SqlOptions {
    SqlOptions {
        host: "127.0.0.1".to_owned(),
        port: proxy.port(),
        ..schema.options.clone()
    }
}

/// No call waits longer than its timeout when no more bytes arrive, and later calls succeed.
async fn a_hanging_connection_times_out(server: Server) -> Result<()> {
    let schema = Schema::new(server).await;
    let gate = Arc::<Gate>::default();
    let proxy = Proxy::start(&address(server), &gate).await;
    let options = SqlOptions {
        connections_max: 2,
        connect_timeout_ms: 700,
        request_timeout_ms: 700,
        retry_timeout_ms: 700,
        dump_timeout_ms: 700,
        ..proxied_options(&proxy, &schema)
    };
    let entity_store =
        retry_until_ok(async || EntityStore::open(&options, &schema.namespace).await).await;
    let rows: Vec<Entity> = (0..50_000)
        .map(|id| Entity::Effort(effort(id, id, 1)))
        .collect();
    schema.open_store().await?.apply(&rows, 1).await?;
    let started = async || {
        let mut dump = entity_store.dump(Source::Efforts, None, 100).await?;
        dump.try_next().await?.expect("a batch");
        Ok(dump)
    };
    let mut dump = retry_until_ok(started).await;

    gate.hold(Holds::Everything);
    let started = Instant::now();
    for _ in 0..3 {
        let error = entity_store.club_members(1).await.expect_err("a timeout");
        assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
        assert!(error.to_string().contains(&proxy.address), "{error}");
    }
    let error = entity_store
        .apply(&rows[..1], 1)
        .await
        .expect_err("a timeout");
    assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
    let error = loop {
        match dump.try_next().await {
            Ok(batch) => batch.expect("a timeout"),
            Err(error) => break error,
        };
    };
    assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
    assert!(
        started.elapsed() < Duration::from_secs(30),
        "{:?}",
        started.elapsed()
    );

    gate.hold(Holds::Nothing);
    let row = Entity::Effort(Effort {
        version: 2,
        ..effort(1, 1, 1)
    });
    let rows = [row];
    retry_until_ok(async || entity_store.apply(&rows, 1).await).await;
    let versions = retry_until_ok(async || entity_store.versions(&rows).await).await;
    assert_eq!(versions, [Some(2)]);
    Ok(())
}

/// Options through a proxy, without TLS, so that the traffic can be read.
fn plain_text_options(proxy: &Proxy, schema: &Schema) -> SqlOptions {
    SqlOptions {
        tls: SqlTls::Disable,
        connections_max: 1,
        request_timeout_ms: 5_000,
        retry_timeout_ms: 20_000,
        ..proxied_options(proxy, schema)
    }
}

/// Runs a call whose first COMMIT gets no reply, so that the call is repeated. `between` runs
/// before the repetition.
async fn with_lost_commit<T>(
    gate: &Gate,
    call: impl Future<Output = Result<T>>,
    between: impl AsyncFnOnce() -> Result<()>,
) -> Result<T> {
    gate.hold_reply_to("COMMIT");
    let held_chunks = gate.held_chunks();
    let cutting = async {
        gate.wait_for_held(held_chunks).await;
        // The server has committed; only its reply is lost. The next held reply belongs to the
        // repeated call.
        between().await.expect("the call in between");
        let chunks = gate.held_chunks();
        gate.cut();
        gate.wait_for_held(chunks).await;
        gate.hold(Holds::Nothing);
    };
    let call_and_cut = async { tokio::join!(call, cutting) };
    let (outcome, ()) = timeout(WAIT_MAX, call_and_cut)
        .await
        .expect("the task ends");
    outcome
}

async fn do_nothing() -> Result<()> {
    Ok(())
}

/// An administrator's action is recorded once when the reply to its COMMIT is lost.
async fn actions_are_recorded_once(server: Server) -> Result<()> {
    let schema = Schema::new(server).await;
    let gate = Arc::<Gate>::default();
    let proxy = Proxy::start(&address(server), &gate).await;
    let keys = ApiKeyStore::on_server(&plain_text_options(&proxy, &schema), &schema.namespace);
    let action = |target: &str| AdminAction {
        number: 0,
        at_ms: 1,
        actor: "a".to_owned(),
        action: "replay".to_owned(),
        target: target.to_owned(),
        detail: None,
    };
    keys.record_action(&action("before")).await?;
    let lost = action("lost");
    with_lost_commit(&gate, keys.record_action(&lost), do_nothing).await?;
    // Two equal actions are two records.
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

/// A call that is repeated after a lost COMMIT returns its own outcome, not one of another client.
async fn a_lost_commit_is_detected(server: Server) -> Result<()> {
    let schema = Schema::new(server).await;
    let gate = Arc::<Gate>::default();
    let proxy = Proxy::start(&address(server), &gate).await;
    let store = EntityStore::open(&plain_text_options(&proxy, &schema), &schema.namespace).await?;
    store.apply(&[application(1)], 1).await?;
    let context = AuditContext {
        actor: "a".to_owned(),
        reason: None,
    };

    let requested =
        with_lost_commit(&gate, store.request_capacity(1, 5, &context, 1), do_nothing).await?;
    let CapacityRequestOutcome::Created(request) = requested else {
        panic!("{requested:?}");
    };
    let repeated = store.request_capacity(1, 6, &context, 1).await?;
    assert!(
        matches!(repeated, CapacityRequestOutcome::AlreadyOpen(_)),
        "{repeated:?}"
    );

    let grant = RequestDecision::Grant(None);
    let decided = with_lost_commit(
        &gate,
        store.decide_request(request.id, grant, &context, 2),
        do_nothing,
    )
    .await?;
    let DecisionOutcome::Done { usage, .. } = decided else {
        panic!("{decided:?}");
    };
    assert_eq!(usage.application.athlete_capacity, 5);
    let repeated = store.decide_request(request.id, grant, &context, 2).await?;
    assert!(
        matches!(repeated, DecisionOutcome::AlreadyDecided(_)),
        "{repeated:?}"
    );
    assert_eq!(store.audit_entries(1, None, 10).await?.len(), 1);

    let connected = with_lost_commit(&gate, store.authorize(1, 7, 3), do_nothing).await?;
    assert!(
        matches!(connected, AuthorizeOutcome::New { .. }),
        "{connected:?}"
    );
    assert_eq!(
        store.authorize(1, 7, 3).await?,
        AuthorizeOutcome::AlreadyConnected
    );
    let usages = store.usages_by_id(&[1]).await?;
    let connected: Vec<Option<i64>> = usages.iter().map(|usage| usage.connected).collect();
    assert_eq!(connected, [Some(1)]);
    Ok(())
}

/// A call that is repeated after a lost COMMIT neither repeats its effect nor undoes later changes
/// of others.
async fn a_repeated_call_leaves_later_changes_alone(server: Server) -> Result<()> {
    let schema = Schema::new(server).await;
    let gate = Arc::<Gate>::default();
    let proxy = Proxy::start(&address(server), &gate).await;
    let store = EntityStore::open(&plain_text_options(&proxy, &schema), &schema.namespace).await?;
    let other_store = schema.open_store().await?;
    store.apply(&[application(1)], 1).await?;
    let context = AuditContext {
        actor: "a".to_owned(),
        reason: None,
    };
    let filter = CapacityRequestFilter {
        application_id: Some(1),
        state: None,
    };

    let refuse_requests = async || {
        let requests = other_store.capacity_requests(filter, None, 10).await?;
        for request in requests {
            other_store
                .decide_request(request.id, RequestDecision::Refuse, &context, 2)
                .await?;
        }
        Ok(())
    };
    let requested = store.request_capacity(1, 5, &context, 1);
    let requested = with_lost_commit(&gate, requested, refuse_requests).await?;
    assert!(
        matches!(requested, CapacityRequestOutcome::Created(_)),
        "{requested:?}"
    );
    let requests = other_store.capacity_requests(filter, None, 10).await?;
    let states: Vec<RequestState> = requests.iter().map(|request| request.state).collect();
    assert_eq!(states, [RequestState::Refused]);

    let raise_capacity = async || {
        other_store
            .change_application(1, ApplicationChange::capacity(4), &context, 3)
            .await
            .map(drop)
    };
    let changed = store.change_application(1, ApplicationChange::capacity(3), &context, 3);
    let usage = with_lost_commit(&gate, changed, raise_capacity).await?;
    let capacity = usage.map(|usage| usage.application.athlete_capacity);
    assert_eq!(capacity, Some(4));
    assert_eq!(other_store.audit_entries(1, None, 10).await?.len(), 2);

    store.authorize(1, 7, 4).await?;
    let connect = async || other_store.authorize(1, 7, 9).await.map(drop);
    with_lost_commit(&gate, store.revoke(1, 7, 5), connect).await?;
    assert_eq!(
        other_store.authorize(1, 7, 10).await?,
        AuthorizeOutcome::AlreadyConnected
    );
    Ok(())
}

/// Calls with other values send no new statements, so the caches of prepared statements stay small.
async fn statements_are_prepared_once(server: Server) -> Result<()> {
    let schema = Schema::new(server).await;
    let gate = Arc::<Gate>::default();
    let proxy = Proxy::start(&address(server), &gate).await;
    let store = EntityStore::open(&plain_text_options(&proxy, &schema), &schema.namespace).await?;
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
        // An app's own SQL puts the athlete into the outbox.
        schema.run(&format!(
            "UPDATE athletes SET is_deleted = FALSE WHERE id = {id};"
        ));
        for source in [Source::Efforts, Source::Authorizations] {
            let status = store.outbox_status(source).await?;
            let pending = store
                .pending_notifications(source, status.newest, 100)
                .await?;
            let ids: Vec<i64> = pending.iter().map(|notification| notification.id).collect();
            store.remove_notifications(&ids).await?;
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

/// The error of an unreachable server names its address, and no call waits forever.
async fn an_unreachable_server_is_named(server: Server) -> Result<()> {
    let options = SqlOptions {
        port: 1,
        retry_timeout_ms: 200,
        ..server.options()
    };
    let namespace = servers::namespace();
    let opened = EntityStore::open(&options, &namespace).await;
    let error = opened.expect_err("an unreachable server");
    assert_eq!(error.kind(), ErrorKind::Retry);
    assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
    let diagnostics = EntityStore::diagnostics(&options, &namespace).await?;
    assert!(diagnostics[0].contains("127.0.0.1:1"), "{diagnostics:?}");
    Ok(())
}

/// Several processes create a schema at once. Opening a missing schema fails and does not create
/// it.
async fn schemas_are_created_once(server: Server) -> Result<()> {
    let (options, namespace) = (server.options(), servers::namespace());
    for _ in 0..2 {
        let opened = EntityStore::open(&options, &namespace).await;
        let error = opened.expect_err("a missing schema");
        assert_eq!(error.kind(), ErrorKind::Fatal, "{error}");
        assert!(
            error.to_string().contains("run `backstitch migrate`"),
            "{error}"
        );
        let diagnostics = EntityStore::diagnostics(&options, &namespace).await?;
        assert!(
            diagnostics[0].contains("run `backstitch migrate`"),
            "{diagnostics:?}"
        );
    }
    let mut migrations = JoinSet::new();
    for _ in 0..4 {
        let (options, namespace) = (options.clone(), namespace.clone());
        migrations.spawn(async move { EntityStore::migrate(&options, &namespace).await });
    }
    while let Some(created) = migrations.join_next().await {
        created.expect("the task ends")?;
    }
    assert!(!EntityStore::migrate(&options, &namespace).await?);
    assert_eq!(
        EntityStore::diagnostics(&options, &namespace).await?,
        Vec::<String>::new()
    );
    EntityStore::open(&options, &namespace).await?;
    server.drop_schema(&namespace);
    Ok(())
}

/// A store with a changed migration, or with an older or newer schema, does not open.
async fn a_changed_migration_is_refused(server: Server) -> Result<()> {
    let schema = Schema::new(server).await;
    for (change, revert, problem) in [
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
            "was aborted",
        ),
        (
            "UPDATE _sqlx_migrations SET checksum = 'x' WHERE version = 1",
            "",
            "differs from",
        ),
    ] {
        schema.run(&format!("{change};"));
        let error = schema
            .open_store()
            .await
            .expect_err("an unusable option")
            .to_string();
        assert!(error.contains(problem), "{error}");
        let diagnostics = EntityStore::diagnostics(&schema.options, &schema.namespace).await?;
        assert!(diagnostics[0].contains(problem), "{diagnostics:?}");
        if problem == "was aborted" && server == Server::MariaDb {
            // MariaDB cannot roll back schema changes, so the migration runs again.
            assert!(EntityStore::migrate(&schema.options, &schema.namespace).await?);
        } else if problem != "older" {
            let outcome = EntityStore::migrate(&schema.options, &schema.namespace).await;
            assert_eq!(outcome.expect_err("refused").kind(), ErrorKind::Fatal);
        }
        if !revert.is_empty() {
            schema.run(&format!("{revert};"));
            schema.open_store().await?;
        }
    }
    Ok(())
}

/// Errors for an unknown user or missing rights say so, and never contain a password.
async fn wrong_logins_are_named(server: Server) -> Result<()> {
    let schema = Schema::new(server).await;
    let name = schema.name();
    let unknown_user = SqlOptions {
        user: format!("{name}_nobody"),
        password: "open sesame".to_owned().into(),
        ..schema.options.clone()
    };
    let diagnostics = EntityStore::diagnostics(&unknown_user, &schema.namespace).await?;
    assert!(
        diagnostics[0].contains("check user, password"),
        "{diagnostics:?}"
    );
    assert!(!diagnostics[0].contains("sesame"), "{diagnostics:?}");

    if server == Server::MariaDb {
        let collate =
            |collation: &str| schema.run(&format!("ALTER DATABASE {name} COLLATE {collation};"));
        collate("utf8mb4_general_ci");
        let diagnostics = EntityStore::diagnostics(&schema.options, &schema.namespace).await?;
        assert!(
            diagnostics[0].contains("utf8mb4_general_ci"),
            "{diagnostics:?}"
        );
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
    let diagnostics = EntityStore::diagnostics(&reader, &schema.namespace).await;
    let entity_store = EntityStore::open(&reader, &schema.namespace).await?;
    let refused = entity_store
        .apply(&[Entity::Effort(effort(1, 2, 3))], 1)
        .await;
    schema.run(&match server {
        Server::Postgres => format!("DROP OWNED BY {user}; DROP ROLE {user};"),
        Server::MariaDb => format!("DROP USER {user}@'%';"),
    });
    let diagnostics = diagnostics?;
    assert!(diagnostics.len() > 3, "{diagnostics:?}");
    assert!(
        diagnostics
            .iter()
            .any(|diagnostic| diagnostic.contains("outbox")),
        "{diagnostics:?}"
    );
    let error = refused.expect_err("a missing right");
    assert_eq!(error.kind(), ErrorKind::Fatal, "{error}");
    assert!(error.to_string().contains("rights"), "{error}");
    Ok(())
}
