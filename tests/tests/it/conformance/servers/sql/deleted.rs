//! Athletes that an app deletes with its own SQL have no connections.

use schemas::entities::{Athlete, Entity, Group};
use schemas::source::Source;
use stores::Result;
use stores::admin::EntityAdmin;
use stores::entities::{AuthorizeOutcome, EntityRead, EntityWrite};
use stores::notices::Notices;
use stores::sql::EntityStore;
use tests::conformance::entity_rows::{application, athlete, authorization, authorization_rows};

use super::apps::{Groups, take_groups};
use super::{Schema, Server};

super::on_both! {
    athletes_deleted_by_an_app_have_no_connections
    a_concurrent_connection_and_deletion_agree
    a_counter_locked_by_an_app_delays_nothing_else
    a_deleted_athlete_reaches_no_threshold
    an_apps_own_authorizations_are_published
    counters_exclude_deleted_athletes
    a_deleted_application_is_unknown
}

const INSERT: &str =
    "INSERT INTO authorizations (id, application_id, athlete_id, created_at_us, revoked_at_us)";

/// An application with room for ten.
async fn new_application(server: Server) -> Result<(Schema, EntityStore)> {
    let schema = Schema::new(server).await;
    let entity_store = schema.open_store().await?;
    let rows = [1, 2].map(|id| Entity::Application(application(id, 10)));
    entity_store.apply(&rows, 1).await?;
    Ok((schema, entity_store))
}

fn athlete_row(id: i64, is_deleted: bool) -> Entity {
    Entity::Athlete(Athlete {
        is_deleted,
        ..athlete(id)
    })
}

/// The number of connected athletes, according to the counters.
async fn connected_counts(entity_store: &EntityStore) -> Result<Vec<i64>> {
    let usages = entity_store.usages_by_id(&[1, 2]).await?;
    Ok(usages
        .into_iter()
        .map(|usage| usage.connected.unwrap_or(-1))
        .collect())
}

async fn athletes_deleted_by_an_app_have_no_connections(server: Server) -> Result<()> {
    let (schema, entity_store) = new_application(server).await?;
    schema.run(&format!(
        "INSERT INTO athletes (id) VALUES (10), (11);
         {INSERT} VALUES (1, 1, 10, 5, NULL), (2, 1, 10, 5, NULL), (3, 1, 11, 5, NULL),
             (4, 2, 10, 5, NULL), (5, 2, 12, 5, NULL), (6, 2, 11, 5, 6);"
    ));
    take_groups(&entity_store, Source::Authorizations).await?;
    assert_eq!(connected_counts(&entity_store).await?, [2, 2]);
    for (statement, groups, connected) in [
        (
            "UPDATE athletes SET is_deleted = true WHERE id = 10;",
            vec![(1, 10), (2, 10)],
            [1, 1],
        ),
        ("UPDATE athletes SET gender = 'F';", vec![], [1, 1]),
        // Changes to the authorizations of a deleted athlete do not change the counters.
        (
            "UPDATE authorizations SET revoked_at_us = 7 WHERE id = 1;",
            vec![(1, 10)],
            [1, 1],
        ),
        (
            "DELETE FROM authorizations WHERE id = 4;",
            vec![(2, 10)],
            [1, 1],
        ),
        (
            "INSERT INTO authorizations (id, application_id, athlete_id, created_at_us)
             VALUES (7, 2, 10, 5);",
            vec![(2, 10)],
            [1, 1],
        ),
        (
            "UPDATE athletes SET is_deleted = false WHERE id = 10;",
            vec![(1, 10), (2, 10)],
            [2, 2],
        ),
        (
            "INSERT INTO athletes (id, is_deleted) VALUES (12, true);",
            vec![(2, 12)],
            [2, 1],
        ),
        ("DELETE FROM athletes WHERE id = 12;", vec![(2, 12)], [2, 2]),
    ] {
        schema.run(statement);
        let groups: Groups = groups.into_iter().collect();
        assert_eq!(
            take_groups(&entity_store, Source::Authorizations).await?,
            groups,
            "{statement}"
        );
        assert_eq!(
            connected_counts(&entity_store).await?,
            connected,
            "{statement}"
        );
        let diagnostics = EntityStore::diagnostics(&schema.options, &schema.namespace).await?;
        assert_eq!(diagnostics, Vec::<String>::new(), "{statement}");
    }
    Ok(())
}

/// Neither of two transactions sees the other. Whichever commits later, the athlete is not counted,
/// and a later notification covers the pair.
async fn a_concurrent_connection_and_deletion_agree(server: Server) -> Result<()> {
    let (schema, entity_store) = new_application(server).await?;
    schema.run("INSERT INTO athletes (id) VALUES (10), (11), (12);");
    take_groups(&entity_store, Source::Authorizations).await?;

    // The app deletes the athlete while the athlete connects through our API.
    let mut app = server.session();
    app.run(&schema.select_statement());
    app.run("BEGIN; UPDATE athletes SET is_deleted = true WHERE id = 10;");
    let AuthorizeOutcome::New { notification, .. } = entity_store.authorize(1, 10, 1).await? else {
        panic!("there is room");
    };
    entity_store
        .remove_notifications(&[notification.id])
        .await?;
    assert_eq!(connected_counts(&entity_store).await?, [1, 0]);
    app.run("COMMIT;");
    let groups: Groups = [(1, 10)].into();
    assert_eq!(
        take_groups(&entity_store, Source::Authorizations).await?,
        groups
    );
    assert_eq!(connected_counts(&entity_store).await?, [0, 0]);

    // The app connects the athlete while a line deletes the athlete.
    app.run(&format!("BEGIN; {INSERT} VALUES (5, 2, 11, 5, NULL);"));
    let applied = entity_store.apply(&[athlete_row(11, true)], 1).await?;
    assert_eq!(applied.notifications, []);
    assert_eq!(
        take_groups(&entity_store, Source::Authorizations).await?,
        [].into()
    );
    app.run("COMMIT;");
    // Published twice: for the app's change, and for the conflict that was found.
    for _ in 0..2 {
        let groups: Groups = [(2, 11)].into();
        assert_eq!(
            take_groups(&entity_store, Source::Authorizations).await?,
            groups
        );
    }
    assert_eq!(
        take_groups(&entity_store, Source::Authorizations).await?,
        [].into()
    );
    assert_eq!(connected_counts(&entity_store).await?, [0, 0]);

    // The app connects the athlete in a transaction with an old snapshot.
    let level = match server {
        Server::Postgres => "CHARACTERISTICS AS",
        Server::MariaDb => "",
    };
    app.run(&format!(
        "SET SESSION {level} TRANSACTION ISOLATION LEVEL REPEATABLE READ;"
    ));
    assert_eq!(app.run("BEGIN; SELECT count(*) FROM athletes;"), "3");
    entity_store.apply(&[athlete_row(12, true)], 1).await?;
    assert_eq!(
        take_groups(&entity_store, Source::Authorizations).await?,
        [].into()
    );
    app.run(&format!("{INSERT} VALUES (6, 2, 12, 5, NULL); COMMIT;"));
    take_groups(&entity_store, Source::Authorizations).await?;
    take_groups(&entity_store, Source::Authorizations).await?;
    assert_eq!(connected_counts(&entity_store).await?, [0, 0]);
    assert_eq!(
        entity_store.authorize(2, 12, 1).await?,
        AuthorizeOutcome::AthleteDeleted
    );
    let diagnostics = EntityStore::diagnostics(&schema.options, &schema.namespace).await?;
    assert_eq!(diagnostics, Vec::<String>::new());
    Ok(())
}

/// An app locks the counter of an application. Other notifications are still published. Connections
/// of deleted athletes are moved once the lock is released.
async fn a_counter_locked_by_an_app_delays_nothing_else(server: Server) -> Result<()> {
    let (schema, entity_store) = new_application(server).await?;
    schema.run(&format!(
        "INSERT INTO athletes (id) VALUES (10), (11), (12);
         {INSERT} VALUES (1, 1, 10, 5, NULL), (2, 2, 10, 5, NULL), (3, 2, 11, 5, NULL);
         INSERT INTO efforts (id, segment_id, athlete_id, activity_id, elapsed_time_s, started_at_us)
         VALUES (1, 7, 10, 1, 60, 5);"
    ));
    take_groups(&entity_store, Source::Authorizations).await?;
    take_groups(&entity_store, Source::Efforts).await?;
    let mut app = server.session();
    app.run(&schema.select_statement());
    app.run(&format!("BEGIN; {INSERT} VALUES (5, 2, 12, 5, NULL);"));
    schema.run("UPDATE athletes SET is_deleted = true WHERE id = 10;");
    // A deletion by a line does not wait for the lock either.
    entity_store.apply(&[athlete_row(11, true)], 1).await?;
    let started = std::time::Instant::now();
    assert_eq!(
        take_groups(&entity_store, Source::Efforts).await?,
        [(7, 10)].into()
    );
    assert_eq!(
        take_groups(&entity_store, Source::Authorizations).await?,
        [(1, 10)].into()
    );
    assert!(started.elapsed().as_secs() < 5, "{:?}", started.elapsed());
    assert_eq!(connected_counts(&entity_store).await?, [0, 2]);
    app.run("COMMIT;");
    let groups: Groups = [(2, 10), (2, 11), (2, 12)].into();
    assert_eq!(
        take_groups(&entity_store, Source::Authorizations).await?,
        groups
    );
    assert_eq!(
        take_groups(&entity_store, Source::Authorizations).await?,
        [].into()
    );
    assert_eq!(connected_counts(&entity_store).await?, [0, 1]);
    let diagnostics = EntityStore::diagnostics(&schema.options, &schema.namespace).await?;
    assert_eq!(diagnostics, Vec::<String>::new());
    Ok(())
}

/// Lines that connect a deleted athlete reach no threshold, in any order relative to the deletion.
async fn a_deleted_athlete_reaches_no_threshold(server: Server) -> Result<()> {
    let (_schema, entity_store) = new_application(server).await?;
    let mut rows: Vec<Entity> = (1..=7)
        .map(|id| Entity::Authorization(authorization(id, 1, id)))
        .collect();
    entity_store.apply(&rows, 1).await?;
    entity_store.apply(&[athlete_row(90, true)], 1).await?;
    rows = vec![
        Entity::Authorization(authorization(90, 1, 90)),
        Entity::Authorization(authorization(91, 1, 91)),
        athlete_row(91, true),
    ];
    entity_store.apply(&rows, 1).await?;
    assert_eq!(connected_counts(&entity_store).await?, [7, 0]);
    assert_eq!(entity_store.notices(None, None, 10).await?, []);
    entity_store.apply(&[athlete_row(90, false)], 1).await?;
    assert_eq!(connected_counts(&entity_store).await?, [8, 0]);
    let recorded = entity_store.notices(None, None, 10).await?;
    let recorded: Vec<_> = recorded
        .iter()
        .map(|notice| (notice.threshold, notice.connected))
        .collect();
    assert_eq!(recorded, [(80, 8)]);
    Ok(())
}

/// With an app's own authorizations, all of an athlete's authorizations are published and read
/// together with the athlete.
async fn an_apps_own_authorizations_are_published(server: Server) -> Result<()> {
    let (schema, entity_store) = new_application(server).await?;
    drop(entity_store);
    schema.run(
        "DROP TABLE authorizations;
         CREATE TABLE grants (id BIGINT PRIMARY KEY, client BIGINT, rider BIGINT);
         CREATE VIEW authorizations AS SELECT id, client AS application_id, rider AS athlete_id,
             5 AS created_at_us, NULLIF(1, 1) AS revoked_at_us, 0 AS version FROM grants;
         INSERT INTO grants VALUES (1, 1, 10), (2, 2, 10), (3, 2, 11);",
    );
    let entity_store = schema.open_store().await?;
    let is_athlete_deleted = async |key, member| -> Result<bool> {
        let group = [Group { key, member }];
        let rows = entity_store.groups(Source::Authorizations, &group).await?;
        Ok(authorization_rows(&rows)[0].athlete_is_deleted)
    };
    assert!(!is_athlete_deleted(1, 10).await?);
    schema.run("INSERT INTO athletes (id, is_deleted) VALUES (10, true);");
    let groups: Groups = [(1, 10), (2, 10)].into();
    assert_eq!(
        take_groups(&entity_store, Source::Authorizations).await?,
        groups
    );
    assert!(is_athlete_deleted(1, 10).await? && !is_athlete_deleted(2, 11).await?);
    entity_store
        .apply(&[athlete_row(10, false), athlete_row(11, true)], 1)
        .await?;
    let groups: Groups = [(1, 10), (2, 10), (2, 11)].into();
    assert_eq!(
        take_groups(&entity_store, Source::Authorizations).await?,
        groups
    );
    assert!(!is_athlete_deleted(1, 10).await? && is_athlete_deleted(2, 11).await?);
    Ok(())
}

/// A recount leaves deleted athletes out, and `check` names counters that include them.
async fn counters_exclude_deleted_athletes(server: Server) -> Result<()> {
    let (schema, entity_store) = new_application(server).await?;
    schema.run(&format!(
        "INSERT INTO athletes (id, is_deleted) VALUES (10, true);
         {INSERT} VALUES (1, 1, 10, 5, NULL), (2, 1, 11, 5, NULL), (3, 2, 10, 5, NULL);"
    ));
    take_groups(&entity_store, Source::Authorizations).await?;
    assert_eq!(connected_counts(&entity_store).await?, [1, 0]);
    // The state that an earlier version would have left.
    schema.run(
        "UPDATE connections SET is_away = false;
         DELETE FROM connected;
         INSERT INTO connected (application_id, athletes) VALUES (1, 2), (2, 1);",
    );
    let diagnostics = EntityStore::diagnostics(&schema.options, &schema.namespace).await?;
    assert!(
        diagnostics.len() == 1 && diagnostics[0].contains("applications 1, 2"),
        "{diagnostics:#?}"
    );
    let recounted = EntityStore::recount(&schema.options, &schema.namespace).await?;
    assert_eq!(recounted, [1, 2]);
    assert_eq!(connected_counts(&entity_store).await?, [1, 0]);
    let diagnostics = EntityStore::diagnostics(&schema.options, &schema.namespace).await?;
    assert_eq!(diagnostics, Vec::<String>::new());
    Ok(())
}

/// An app deletes an application, with or without its authorizations.
async fn a_deleted_application_is_unknown(server: Server) -> Result<()> {
    let (schema, entity_store) = new_application(server).await?;
    let rows = [(1, 1, 10), (2, 2, 10), (3, 2, 11)]
        .map(|(id, key, member)| Entity::Authorization(authorization(id, key, member)));
    entity_store.apply(&rows, 1).await?;
    take_groups(&entity_store, Source::Authorizations).await?;
    schema.run("DELETE FROM applications WHERE id = 2;");
    let unknown = AuthorizeOutcome::UnknownApplication;
    assert_eq!(entity_store.authorize(2, 12, 1).await?, unknown);
    assert_eq!(entity_store.authorize(2, 10, 1).await?, unknown);
    assert_eq!(connected_counts(&entity_store).await?, [1]);
    assert_eq!(
        take_groups(&entity_store, Source::Authorizations).await?,
        [].into()
    );
    // Its athletes are connected when the application comes back, unless their authorizations were
    // deleted, too.
    entity_store
        .apply(&[Entity::Application(application(2, 10))], 1)
        .await?;
    assert_eq!(connected_counts(&entity_store).await?, [1, 2]);
    schema.run("DELETE FROM applications WHERE id = 2; DELETE FROM authorizations WHERE application_id = 2;");
    let groups: Groups = [(2, 10), (2, 11)].into();
    assert_eq!(
        take_groups(&entity_store, Source::Authorizations).await?,
        groups
    );
    entity_store
        .apply(&[Entity::Application(application(2, 10))], 1)
        .await?;
    assert_eq!(connected_counts(&entity_store).await?, [1, 0]);
    Ok(())
}
