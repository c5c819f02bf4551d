//! Apps that write with their own SQL.

use std::collections::BTreeSet;

use futures::TryStreamExt;
use schemas::entities::{Entity, Group};
use schemas::source::Source;
use stores::entities::{AuthorizeOutcome, EntityErase, EntityRead, EntityWrite};
use stores::recounts::{CountedApplication, Recounts};
use stores::sql::EntityStore;
use stores::{ErrorKind, Result};
use tests::conformance::entity_rows::{application, athlete, authorization, effort, effort_rows};

use super::{Schema, Server};

super::on_both! {
    writes_of_an_app_are_published
    an_apps_own_tables_are_read
    unreadable_columns_are_named
    athletes_of_an_apps_own_tables_are_recounted
    an_apps_own_rows_of_an_athlete_remain
}

/// Erasure of an athlete finds and reports rows in an app's own tables, and leaves them. It deletes
/// the rows in our tables.
async fn an_apps_own_rows_of_an_athlete_remain(server: Server) -> Result<()> {
    let schema = Schema::new(server).await;
    schema.run(
        "DROP TABLE efforts; DROP TABLE authorizations;
         CREATE TABLE rides (id integer PRIMARY KEY, segment integer NOT NULL, rider integer NOT NULL);
         CREATE TABLE grants (id integer PRIMARY KEY, app integer NOT NULL, athlete integer NOT NULL,
             ended bigint);
         INSERT INTO rides VALUES (1, 1, 5), (2, 3, 5), (3, 1, 6);
         INSERT INTO grants VALUES (1, 8, 5, NULL), (2, 9, 6, NULL);
         CREATE VIEW efforts AS SELECT id, segment AS segment_id, rider AS athlete_id, 1 AS activity_id,
             60 AS elapsed_time_s, 5 AS started_at_us, 'UTC' AS tz, FALSE AS is_hidden,
             FALSE AS is_deleted, 0 AS version FROM rides;
         CREATE VIEW authorizations AS SELECT id, app AS application_id, athlete AS athlete_id,
             5 AS created_at_us, ended AS revoked_at_us, 0 AS version FROM grants;",
    );
    let entity_store = schema.open_store().await?;
    entity_store
        .apply(&[Entity::Athlete(athlete(5))], 1)
        .await?;
    let athlete_rows = async || -> Result<Vec<(&'static str, u64, bool)>> {
        let mut counts = entity_store.count_athlete_rows(5).await?;
        counts.retain(|counted_rows| counted_rows.rows > 0);
        let shown = counts
            .iter()
            .map(|counted_rows| (counted_rows.table, counted_rows.rows, counted_rows.is_view));
        Ok(shown.collect())
    };
    let apps = [("authorizations", 1, true), ("efforts", 2, true)];
    let ours = ("athletes", 1, false);
    assert_eq!(athlete_rows().await?, [&apps[..], &[ours]].concat());
    while entity_store.erase_rows(5, 10, 1).await? > 0 {}
    entity_store.notify_groups_of(5, 1).await?;
    let groups: Groups = [(1, 5), (3, 5)].into();
    assert_eq!(take_groups(&entity_store, Source::Efforts).await?, groups);
    let groups: Groups = [(8, 5)].into();
    assert_eq!(
        take_groups(&entity_store, Source::Authorizations).await?,
        groups
    );
    assert_eq!(athlete_rows().await?, apps);
    let group = Group { key: 1, member: 5 };
    entity_store.erase_groups(Source::Efforts, &[group]).await?;
    assert_eq!(athlete_rows().await?, apps);
    Ok(())
}

/// Where authorizations and applications are views, the rows of the views are counted, and the
/// counters are in our table.
async fn athletes_of_an_apps_own_tables_are_recounted(server: Server) -> Result<()> {
    let schema = Schema::new(server).await;
    schema.run(
        "DROP TABLE authorizations; DROP TABLE applications;
         CREATE TABLE apps (id integer PRIMARY KEY, room integer NOT NULL);
         CREATE TABLE grants (id integer PRIMARY KEY, app integer NOT NULL, athlete integer NOT NULL,
             ended bigint);
         INSERT INTO apps VALUES (1, 10), (2, 20), (3, 30);
         INSERT INTO grants VALUES (1, 1, 5, NULL), (2, 1, 5, NULL), (3, 1, 6, NULL), (4, 1, 7, 9),
             (5, 3, 5, NULL);
         CREATE VIEW applications AS SELECT id, 'Ride' AS name, '1' AS owner,
             room AS athlete_capacity, 0 AS version FROM apps;
         CREATE VIEW authorizations AS SELECT id, app AS application_id, athlete AS athlete_id,
             5 AS created_at_us, ended AS revoked_at_us, 0 AS version FROM grants;",
    );
    let entity_store = schema.open_store().await?;
    let recorded = async || -> Result<Vec<(i64, i64, Option<u64>)>> {
        let applications = entity_store.counted_applications_after(None, 10).await?;
        let shown = |counted: CountedApplication| {
            let recounted = counted.recorded.map(|recounted| recounted.connected);
            (counted.application_id, counted.athlete_capacity, recounted)
        };
        Ok(applications.into_iter().map(shown).collect())
    };
    assert_eq!(
        recorded().await?,
        [(1, 10, None), (2, 20, None), (3, 30, None)]
    );
    for (statement, expected) in [
        ("SELECT 1;", [2, 0, 1]),
        ("UPDATE grants SET ended = 9 WHERE id = 3;", [1, 0, 1]),
        ("INSERT INTO grants VALUES (6, 2, 8, NULL);", [1, 1, 1]),
    ] {
        schema.run(statement);
        let counted = entity_store.recount(&[1, 2, 3], 1).await?;
        entity_store.record_recounts(&counted).await?;
        let counts: Vec<_> = recorded().await?.into_iter().map(|row| row.2).collect();
        assert_eq!(counts, expected.map(Some), "{statement}");
    }
    Ok(())
}

pub(super) type Groups = BTreeSet<(i64, i64)>;

/// The groups of the notifications in the outbox, which is emptied.
pub(super) async fn take_groups(entity_store: &EntityStore, source: Source) -> Result<Groups> {
    let pending = entity_store
        .pending_notifications(source, i64::MAX, 10_000)
        .await?;
    let ids: Vec<i64> = pending.iter().map(|notification| notification.id).collect();
    entity_store.remove_notifications(&ids).await?;
    let groups = pending
        .iter()
        .map(|notification| (notification.group.key, notification.group.member));
    Ok(groups.collect())
}

/// Changes to our tables by an app's statements are published and counted.
#[expect(clippy::too_many_lines, reason = "one scenario")]
async fn writes_of_an_app_are_published(server: Server) -> Result<()> {
    let schema = Schema::new(server).await;
    let entity_store = schema.open_store().await?;
    for (statement, expected) in [
        (
            "INSERT INTO efforts (id, segment_id, athlete_id, activity_id, elapsed_time_s, started_at_us)
             VALUES (1, 2, 3, 1, 60, 5), (2, 2, 3, 1, 60, 5), (3, 9, 3, 1, 60, 5), (4, 9, -5, 1, 60, 5);",
            vec![(2, 3), (9, 3), (9, -5)],
        ),
        ("UPDATE efforts SET elapsed_time_s = 50 WHERE id = 1;", vec![(2, 3)]),
        ("UPDATE efforts SET segment_id = 7 WHERE id = 2;", vec![(2, 3), (7, 3)]),
        ("DELETE FROM efforts WHERE id = 4;", vec![(9, -5)]),
        ("INSERT INTO athletes (id, name) VALUES (3, 'A');", vec![]),
        ("UPDATE athletes SET name = 'B', country = 'IE';", vec![]),
        ("UPDATE athletes SET gender = 'F';", vec![(2, 3), (7, 3), (9, 3)]),
        ("DELETE FROM athletes;", vec![(2, 3), (7, 3), (9, 3)]),
        (
            "INSERT INTO athletes (id, weight_kg) VALUES (3, 70), (4, 80);",
            vec![(2, 3), (7, 3), (9, 3)],
        ),
        ("UPDATE athletes SET id = 30 WHERE id = 3;", vec![(2, 3), (7, 3), (9, 3)]),
        ("UPDATE athletes SET id = 3 WHERE id = 30;", vec![(2, 3), (7, 3), (9, 3)]),
        (
            "INSERT INTO disqualified (athlete_id) VALUES (3), (8);",
            vec![(2, 3), (7, 3), (9, 3)],
        ),
        ("DELETE FROM disqualified WHERE athlete_id = 8;", vec![]),
        (
            "UPDATE disqualified SET athlete_id = 8 WHERE athlete_id = 3;",
            vec![(2, 3), (7, 3), (9, 3)],
        ),
        (
            "UPDATE disqualified SET athlete_id = 3 WHERE athlete_id = 8;",
            vec![(2, 3), (7, 3), (9, 3)],
        ),
    ] {
        schema.run(statement);
        let expected: Groups = expected.into_iter().collect();
        assert_eq!(take_groups(&entity_store, Source::Efforts).await?, expected, "{statement}");
    }
    let rows: Vec<_> = entity_store
        .dump(Source::Efforts, None, 10)
        .await?
        .try_collect()
        .await?;
    let rows: Vec<_> = rows.iter().flat_map(effort_rows).collect();
    assert_eq!(rows.len(), 3);
    assert!(
        rows.iter()
            .all(|row| row.weight_kg == Some(70.0) && row.day == 19_700_101)
    );
    assert!(rows.iter().all(|row| row.athlete_is_disqualified));
    schema.run("DELETE FROM disqualified;");
    let groups: Groups = [(2, 3), (7, 3), (9, 3)].into();
    assert_eq!(take_groups(&entity_store, Source::Efforts).await?, groups);

    entity_store
        .apply(&[Entity::Application(application(1, 0))], 1)
        .await?;
    let insert =
        "INSERT INTO authorizations (id, application_id, athlete_id, created_at_us, revoked_at_us)";
    for (statement, groups, connected) in [
        (
            format!(
                "{insert} VALUES (1, 1, 10, 5, NULL), (2, 1, 10, 5, NULL), (3, 1, 11, 5, NULL), (4, 1, 12, 5, 6);"
            ),
            vec![(1, 10), (1, 11), (1, 12)],
            2,
        ),
        (
            "UPDATE authorizations SET revoked_at_us = 7 WHERE id IN (1, 3);".to_owned(),
            vec![(1, 10), (1, 11)],
            1,
        ),
        (
            "UPDATE authorizations SET revoked_at_us = NULL WHERE id = 4;".to_owned(),
            vec![(1, 12)],
            2,
        ),
        (
            "UPDATE authorizations SET athlete_id = 12 WHERE id = 2;".to_owned(),
            vec![(1, 10), (1, 12)],
            1,
        ),
        (
            "DELETE FROM authorizations WHERE id = 2;".to_owned(),
            vec![(1, 12)],
            1,
        ),
        (
            "DELETE FROM authorizations;".to_owned(),
            vec![(1, 10), (1, 11), (1, 12)],
            0,
        ),
    ] {
        schema.run(&statement);
        let expected: Groups = groups.into_iter().collect();
        assert_eq!(
            take_groups(&entity_store, Source::Authorizations).await?,
            expected,
            "{statement}"
        );
        let full = AuthorizeOutcome::CapacityReached {
            connected,
            capacity: 0,
        };
        assert_eq!(
            entity_store.authorize(1, 999, 1).await?,
            full,
            "{statement}"
        );
    }
    // The store publishes its own changes once.
    let rows = [
        Entity::Effort(effort(50, 1, 3)),
        Entity::Authorization(authorization(50, 1, 3)),
    ];
    let applied = entity_store.apply(&rows, 1).await?;
    for source in Source::LOGGED {
        let pending = entity_store
            .pending_notifications(source, i64::MAX, 10)
            .await?;
        assert!(
            pending
                .iter()
                .all(|notification| applied.notifications.contains(notification))
        );
    }
    assert_eq!(applied.notifications.len(), 2);
    Ok(())
}

/// The example in `deploy/sql`: views on an app's own tables are read, and their changes are
/// published. Only the app writes.
async fn an_apps_own_tables_are_read(server: Server) -> Result<()> {
    let schema = Schema::new(server).await;
    let rides = "INSERT INTO app.rides VALUES
        (1, 2, 3, 1, 60, '2013-05-06 23:30:00.000001', 'Europe/Berlin', false, NULL);";
    let app = App::new(&schema, "", rides);
    check_published(&schema, &app).await
}

/// An app's tables, with views and triggers as in the example.
pub(super) struct App {
    server: Server,
    name: String,
}

impl App {
    /// Creates them. `constraint` applies to the rides; `rows` are inserted before the triggers
    /// exist.
    pub(super) fn new(schema: &Schema, constraint: &str, rows: &str) -> Self {
        let app = Self {
            server: schema.server,
            name: schema.namespace.identifier("app"),
        };
        let (create, example) = match app.server {
            Server::Postgres => (
                format!(
                    "SET timezone TO 'UTC';
                     CREATE SCHEMA {};
                     CREATE TABLE app.riders (id integer PRIMARY KEY, gender char(1), born date,
                         weight_kg numeric(5, 2), closed_at timestamptz);
                     CREATE TABLE app.rides (id integer PRIMARY KEY, segment_id integer NOT NULL,
                         rider_id integer NOT NULL, activity_id bigint NOT NULL,
                         seconds integer NOT NULL, started_at timestamptz NOT NULL,
                         zone varchar(50) NOT NULL, is_private boolean NOT NULL,
                         deleted_at timestamptz {constraint});",
                    app.name
                ),
                include_str!("../../../../../../deploy/sql/postgres.sql"),
            ),
            Server::MariaDb => (
                format!(
                    "CREATE DATABASE {};
                     CREATE TABLE app.riders (id INT PRIMARY KEY, gender CHAR(1), born DATE,
                         weight_kg DECIMAL(5, 2), closed_at DATETIME);
                     CREATE TABLE app.rides (id INT PRIMARY KEY, segment_id INT NOT NULL,
                         rider_id INT NOT NULL, activity_id BIGINT NOT NULL, seconds INT NOT NULL,
                         started_at DATETIME(6) NOT NULL, zone VARCHAR(50) NOT NULL,
                         is_private BOOLEAN NOT NULL, deleted_at DATETIME {constraint});",
                    app.name
                ),
                include_str!("../../../../../../deploy/sql/mysql.sql"),
            ),
        };
        let backstitch = format!("{}.", schema.name());
        schema.run(&app.with_table_names(&(create + rows)));
        schema.run(
            &app.with_table_names(example)
                .replace("backstitch.", &backstitch),
        );
        app
    }

    /// Statements with the names of these tables filled in.
    pub(super) fn with_table_names(&self, statements: &str) -> String {
        statements.replace("app.", &format!("{}.", self.name))
    }
}

impl Drop for App {
    fn drop(&mut self) {
        let kind = match self.server {
            Server::Postgres => "SET lock_timeout TO '5s'; DROP SCHEMA",
            Server::MariaDb => "SET lock_wait_timeout = 5; DROP DATABASE",
        };
        let cascade = match self.server {
            Server::Postgres => "CASCADE",
            Server::MariaDb => "",
        };
        let _dropped = self.server.run(&format!("{kind} {} {cascade};", self.name));
    }
}

#[expect(clippy::too_many_lines, reason = "one scenario")]
async fn check_published(schema: &Schema, app: &App) -> Result<()> {
    let entity_store = schema.open_store().await?;
    let dump = async || -> Result<Vec<_>> {
        let batches: Vec<_> = entity_store
            .dump(Source::Efforts, None, 10)
            .await?
            .try_collect()
            .await?;
        Ok(batches.iter().flat_map(effort_rows).collect())
    };
    let rows = dump().await?;
    assert_eq!(rows.len(), 1);
    assert_eq!((rows[0].day, rows[0].started_at_us % 10), (20_130_507, 1));
    for (statement, expected) in [
        (
            "INSERT INTO app.rides VALUES (2, 5, 3, 1, 55, '2013-05-06 01:00:00', 'UTC', true, NULL);",
            vec![(5, 3)],
        ),
        (
            "UPDATE app.rides SET seconds = 44 WHERE id = 1;",
            vec![(2, 3)],
        ),
        (
            "INSERT INTO app.riders VALUES (3, 'F', '1980-02-03', 61.25, NULL);",
            vec![(2, 3), (5, 3)],
        ),
        (
            "UPDATE app.riders SET closed_at = '2020-01-01';",
            vec![(2, 3), (5, 3)],
        ),
        ("UPDATE app.riders SET closed_at = '2021-01-01';", vec![]),
        ("UPDATE app.riders SET id = 4;", vec![(2, 3), (5, 3)]),
        ("UPDATE app.riders SET id = 3;", vec![(2, 3), (5, 3)]),
        (
            "UPDATE app.rides SET deleted_at = '2020-01-01' WHERE id = 2;",
            vec![(5, 3)],
        ),
    ] {
        schema.run(&app.with_table_names(statement));
        let expected: Groups = expected.into_iter().collect();
        assert_eq!(
            take_groups(&entity_store, Source::Efforts).await?,
            expected,
            "{statement}"
        );
    }
    let rows = dump().await?;
    let groups = rows.iter().map(|row| Group {
        key: row.segment_id,
        member: row.athlete_id,
    });
    let groups: Vec<_> = groups.collect();
    assert_eq!(
        effort_rows(&entity_store.groups(Source::Efforts, &groups).await?),
        rows
    );
    let bounded = entity_store
        .first_groups(Source::Efforts, &groups, 1)
        .await?;
    assert_eq!((bounded.groups, bounded.rows.num_rows()), (1, 1));
    assert_eq!((rows[0].elapsed_time_s, rows[0].is_deleted), (44, false));
    assert_eq!((rows[1].is_hidden, rows[1].is_deleted), (true, true));
    for row in &rows {
        assert_eq!(
            (row.gender.as_deref(), row.birth_year),
            (Some("F"), Some(1980))
        );
        assert_eq!((row.weight_kg, row.athlete_is_deleted), (Some(61.25), true));
        assert!(!row.athlete_is_disqualified);
    }
    // The app lists disqualified athletes in our table, or in its own view that replaces our table.
    schema.run("INSERT INTO disqualified VALUES (3);");
    let groups: Groups = [(2, 3), (5, 3)].into();
    assert_eq!(take_groups(&entity_store, Source::Efforts).await?, groups);
    assert!(dump().await?.iter().all(|row| row.athlete_is_disqualified));
    schema.run(&app.with_table_names(
        "DROP TABLE disqualified;
         CREATE VIEW disqualified AS SELECT id AS athlete_id FROM app.riders WHERE gender = 'X';",
    ));
    assert!(!dump().await?.iter().any(|row| row.athlete_is_disqualified));

    for row in [Entity::Effort(effort(9, 9, 9)), Entity::Athlete(athlete(9))] {
        let error = entity_store
            .apply(&[row], 1)
            .await
            .expect_err("a table of the app");
        assert_eq!(error.kind(), ErrorKind::Reject);
        assert!(error.to_string().contains("view of an app"), "{error}");
    }
    // The other tables are still ours.
    entity_store
        .apply(&[Entity::Application(application(1, 5))], 1)
        .await?;
    assert!(matches!(
        entity_store.authorize(1, 2, 1).await?,
        AuthorizeOutcome::New { .. }
    ));
    let diagnostics = EntityStore::diagnostics(&schema.options, &schema.namespace).await?;
    assert_eq!(diagnostics, Vec::<String>::new());
    Ok(())
}

/// `check` names unreadable columns of a view with their actual and required types, and the store
/// does not open. Narrower integers and decimals are read as they are.
#[expect(clippy::too_many_lines, reason = "one scenario")]
async fn unreadable_columns_are_named(server: Server) -> Result<()> {
    let schema = Schema::new(server).await;
    let (small, moment) = match server {
        Server::Postgres => ("smallint", "timestamp"),
        Server::MariaDb => ("SMALLINT UNSIGNED", "DATETIME"),
    };
    schema.run(&format!(
        "DROP TABLE efforts; DROP TABLE athletes;
         CREATE TABLE rides (id {small}, segment_id {small}, athlete_id {small}, started {moment},
             seconds varchar(20), name varchar(20), is_yes boolean, kilos decimal(5, 2));
         INSERT INTO rides VALUES (1, 2, 3, '2020-01-01', '60', 'UTC', true, 61.25);
         CREATE VIEW efforts AS SELECT id, segment_id, athlete_id, id AS activity_id,
             seconds AS elapsed_time_s, started AS started_at_us, is_yes AS is_hidden,
             name AS is_deleted, kilos AS version FROM rides;
         CREATE VIEW athletes AS SELECT athlete_id AS id, name, name AS gender, 1980 AS birth_year,
             name AS weight_kg, name AS country, is_yes AS is_deleted, 0 AS version FROM rides;"
    ));
    let diagnostics = EntityStore::diagnostics(&schema.options, &schema.namespace).await?;
    let expected = match server {
        Server::Postgres => [
            ("elapsed_time_s", "character varying(20)", "integer"),
            (
                "started_at_us",
                "timestamp without time zone",
                "extract(epoch",
            ),
            ("tz", "is missing", "text"),
            ("is_deleted", "character varying(20)", "boolean"),
            ("version", "numeric(5,2)", "bigint"),
            ("weight_kg", "character varying(20)", "double precision"),
        ],
        Server::MariaDb => [
            ("elapsed_time_s", "varchar(20)", "integer"),
            ("started_at_us", "datetime", "TIMESTAMPDIFF"),
            ("tz", "is missing", "text"),
            ("is_deleted", "varchar(20)", "boolean"),
            ("version", "decimal(5,2)", "SIGNED"),
            ("weight_kg", "varchar(20)", "DOUBLE"),
        ],
    };
    for (column, actual, required) in expected {
        let matching = diagnostics.iter().filter(|diagnostic| {
            diagnostic.contains(&format!("the column {column} of the view"))
                && diagnostic.contains(actual)
                && diagnostic.contains(required)
        });
        assert_eq!(matching.count(), 1, "{column}: {diagnostics:#?}");
    }
    assert_eq!(diagnostics.len(), expected.len(), "{diagnostics:#?}");
    let error = schema.open_store().await.expect_err("an unreadable file");
    assert_eq!(error.kind(), ErrorKind::Fatal, "{error}");
    assert!(error.to_string().contains("started_at_us"), "{error}");

    schema.run("ALTER TABLE follows RENAME TO followed;");
    let diagnostics = EntityStore::diagnostics(&schema.options, &schema.namespace).await?;
    assert!(
        diagnostics
            .iter()
            .any(|diagnostic| diagnostic.contains("follows")),
        "{diagnostics:#?}"
    );
    schema.run("ALTER TABLE followed RENAME TO follows;");
    schema.run(
        "DROP VIEW efforts; DROP VIEW athletes; DROP TABLE clubs; DROP TABLE applications;
         CREATE VIEW efforts AS SELECT id, segment_id, athlete_id, id AS activity_id,
             60 AS elapsed_time_s, 5 AS started_at_us, name AS tz, is_yes AS is_hidden,
             false AS is_deleted, 0 AS version FROM rides;
         CREATE VIEW athletes AS SELECT athlete_id AS id, name, 'F' AS gender, 1980 AS birth_year,
             kilos AS weight_kg, name AS country, false AS is_deleted, 0 AS version FROM rides;
         CREATE VIEW clubs AS SELECT segment_id AS club_id, athlete_id, false AS is_deleted,
             0 AS version FROM rides;
         CREATE VIEW applications AS SELECT id, name, '{\"user\": 1}' AS owner, id AS athlete_capacity,
             0 AS version FROM rides WHERE id < 0;",
    );
    let diagnostics = EntityStore::diagnostics(&schema.options, &schema.namespace).await?;
    assert_eq!(diagnostics.len(), 1, "{diagnostics:#?}");
    assert!(
        diagnostics[0].contains("efforts") && diagnostics[0].contains("index"),
        "{diagnostics:?}"
    );
    // A slow view is not an error.
    let entity_store = schema.open_store().await?;
    assert_eq!(entity_store.club_members(2).await?, [3]);
    assert_eq!(entity_store.application(1).await?, None);
    let group = Group { key: 2, member: 3 };
    let rows = effort_rows(&entity_store.groups(Source::Efforts, &[group]).await?);
    assert_eq!((rows.len(), rows[0].weight_kg), (1, Some(61.25)));
    let dumped: Vec<_> = entity_store
        .dump(Source::Efforts, None, 10)
        .await?
        .try_collect()
        .await?;
    assert_eq!(effort_rows(&dumped[0]), rows);
    let row = Entity::Effort(effort(1, 2, 3));
    assert_eq!(entity_store.versions(&[row]).await?, [Some(0)]);

    schema.run("CREATE INDEX by_group ON rides (segment_id, athlete_id, id);");
    let diagnostics = EntityStore::diagnostics(&schema.options, &schema.namespace).await?;
    assert_eq!(diagnostics, Vec::<String>::new());
    Ok(())
}
