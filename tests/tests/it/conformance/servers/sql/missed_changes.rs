//! Changes that triggers miss: a state that is newer than their transaction's snapshot, cascades,
//! and changed keys.

use schemas::entities::{Entity, Group};
use schemas::source::Source;
use stores::Result;
use stores::entities::{AuthorizeOutcome, EntityRead, EntityWrite};
use stores::notices::Notices;
use stores::sql::EntityStore;
use tests::conformance::entity_rows::{application, authorization, effort_rows};

use super::apps::{App, Groups, take_groups};
use super::{Schema, Server};

super::on_both! {
    a_change_in_an_old_transaction_publishes_newer_efforts
    keys_and_cascades_are_published
    an_apps_keys_and_cascades_are_published
    wrong_counters_are_recounted
    a_recount_reaches_no_threshold
    many_athletes_are_published_at_once
}

const EFFORT: &str =
    "INSERT INTO efforts (id, segment_id, athlete_id, activity_id, elapsed_time_s, started_at_us)";

fn groups(groups: &[(i64, i64)]) -> Groups {
    groups.iter().copied().collect()
}

/// An effort is committed and processed while a transaction with an older snapshot is open, which
/// then changes the athlete. The effort's group is published again.
async fn a_change_in_an_old_transaction_publishes_newer_efforts(server: Server) -> Result<()> {
    let schema = Schema::new(server).await;
    let entity_store = schema.open_store().await?;
    schema.run(&format!(
        "INSERT INTO athletes (id, gender) VALUES (3, 'F');
         {EFFORT} VALUES (1, 1, 3, 1, 60, 5);"
    ));
    assert_eq!(
        take_groups(&entity_store, Source::Efforts).await?,
        groups(&[(1, 3)])
    );
    let mut expected = vec![(1, 3)];
    for (id, (level, before, after)) in (10..).zip([
        ("READ COMMITTED", "F", "M"),
        ("REPEATABLE READ", "M", "X"),
        ("SERIALIZABLE", "X", "F"),
    ]) {
        let mut app = server.session();
        app.run(&schema.select_statement());
        app.run(&format!(
            "SET SESSION {} TRANSACTION ISOLATION LEVEL {level};",
            match server {
                Server::Postgres => "CHARACTERISTICS AS",
                Server::MariaDb => "",
            }
        ));
        let gender = app.run("BEGIN; SELECT gender FROM athletes WHERE id = 3;");
        assert_eq!(gender, before);

        schema.run(&format!("{EFFORT} VALUES ({id}, {id}, 3, 1, 60, 5);"));
        assert_eq!(
            take_groups(&entity_store, Source::Efforts).await?,
            groups(&[(id, 3)])
        );
        let group = Group { key: id, member: 3 };
        let rows = effort_rows(&entity_store.groups(Source::Efforts, &[group]).await?);
        assert_eq!(rows[0].gender.as_deref(), Some(before), "{level}");

        app.run(&format!(
            "UPDATE athletes SET gender = '{after}' WHERE id = 3; COMMIT;"
        ));
        expected.push((id, 3));
        assert_eq!(
            take_groups(&entity_store, Source::Efforts).await?,
            groups(&expected),
            "{level}"
        );
        let rows = effort_rows(&entity_store.groups(Source::Efforts, &[group]).await?);
        assert_eq!(rows[0].gender.as_deref(), Some(after), "{level}");
    }
    // A rolled-back change is not published.
    schema.run("BEGIN; UPDATE athletes SET gender = NULL; ROLLBACK;");
    assert_eq!(
        take_groups(&entity_store, Source::Efforts).await?,
        groups(&[])
    );
    Ok(())
}

/// Foreign keys that an app adds to our tables.
async fn keys_and_cascades_are_published(server: Server) -> Result<()> {
    let schema = Schema::new(server).await;
    let entity_store = schema.open_store().await?;
    schema.run(&format!(
        "INSERT INTO athletes (id) VALUES (3);
         {EFFORT} VALUES (1, 2, 3, 1, 60, 5), (2, 5, 3, 1, 60, 5);
         ALTER TABLE efforts ADD FOREIGN KEY (athlete_id) REFERENCES athletes (id)
             ON DELETE CASCADE ON UPDATE CASCADE;"
    ));
    take_groups(&entity_store, Source::Efforts).await?;
    schema.run("UPDATE athletes SET id = 4 WHERE id = 3;");
    let expected = groups(&[(2, 3), (5, 3), (2, 4), (5, 4)]);
    assert_eq!(take_groups(&entity_store, Source::Efforts).await?, expected);
    schema.run("DELETE FROM athletes WHERE id = 4;");
    assert_eq!(schema.run("SELECT count(*) FROM efforts;"), "0");
    assert_eq!(
        take_groups(&entity_store, Source::Efforts).await?,
        groups(&[(2, 4), (5, 4)])
    );
    Ok(())
}

/// The same with an app's own tables, as in the example.
async fn an_apps_keys_and_cascades_are_published(server: Server) -> Result<()> {
    let schema = Schema::new(server).await;
    let app = App::new(
        &schema,
        ", FOREIGN KEY (rider_id) REFERENCES app.riders (id) ON DELETE CASCADE ON UPDATE CASCADE",
        "INSERT INTO app.riders (id) VALUES (3);
         INSERT INTO app.rides VALUES (1, 2, 3, 1, 60, '2013-05-06 01:00:00', 'UTC', false, NULL),
             (2, 5, 3, 1, 60, '2013-05-06 01:00:00', 'UTC', false, NULL);",
    );
    let entity_store = schema.open_store().await?;
    schema.run(&app.with_table_names("UPDATE app.riders SET id = 4 WHERE id = 3;"));
    let expected = groups(&[(2, 3), (5, 3), (2, 4), (5, 4)]);
    assert_eq!(take_groups(&entity_store, Source::Efforts).await?, expected);
    if server == Server::Postgres {
        for table in ["rides", "riders"] {
            let truncate = app.with_table_names(&format!("TRUNCATE app.{table} CASCADE;"));
            let refused = server.run(&truncate).expect_err("a publishing error");
            assert!(refused.contains("delete the rows of"), "{refused}");
        }
    }
    schema.run(&app.with_table_names("DELETE FROM app.riders WHERE id = 4;"));
    assert_eq!(
        schema.run(&app.with_table_names("SELECT count(*) FROM app.rides;")),
        "0"
    );
    assert_eq!(
        take_groups(&entity_store, Source::Efforts).await?,
        groups(&[(2, 4), (5, 4)])
    );
    Ok(())
}

/// `check` names counters that triggers did not maintain, and `migrate` corrects them.
async fn wrong_counters_are_recounted(server: Server) -> Result<()> {
    let schema = Schema::new(server).await;
    let entity_store = schema.open_store().await?;
    let rows = [
        Entity::Application(application(1, 1)),
        Entity::Application(application(2, 1)),
        Entity::Authorization(authorization(1, 1, 10)),
        Entity::Authorization(authorization(2, 1, 11)),
        Entity::Authorization(authorization(3, 2, 10)),
        Entity::Authorization(authorization(4, 2, 10)),
    ];
    entity_store.apply(&rows, 1).await?;
    let diagnostics = async || EntityStore::diagnostics(&schema.options, &schema.namespace).await;
    let recount = async || EntityStore::recount(&schema.options, &schema.namespace).await;
    assert_eq!(diagnostics().await?, Vec::<String>::new());
    assert_eq!(recount().await?, Vec::<i64>::new());

    schema.run(match server {
        Server::Postgres => {
            "ALTER TABLE authorizations DISABLE TRIGGER USER;
             DELETE FROM authorizations WHERE athlete_id = 11;
             ALTER TABLE authorizations ENABLE TRIGGER USER;"
        }
        Server::MariaDb => {
            "CREATE TABLE users (id BIGINT PRIMARY KEY) ENGINE = InnoDB;
             INSERT INTO users VALUES (10), (11);
             ALTER TABLE authorizations ADD FOREIGN KEY (athlete_id) REFERENCES users (id)
                 ON DELETE CASCADE;
             DELETE FROM users WHERE id = 11;"
        }
    });
    for (change, wrong) in [
        ("", 1),
        (
            "UPDATE connected SET athletes = 7 WHERE application_id = 2;",
            2,
        ),
        ("DELETE FROM connected WHERE application_id = 2;", 2),
        (
            "UPDATE connections SET live = 9 WHERE application_id = 2;",
            2,
        ),
        ("DELETE FROM connections WHERE application_id = 1;", 1),
    ] {
        schema.run(change);
        let problems = diagnostics().await?;
        assert_eq!(problems.len(), 1, "{change} {problems:?}");
        let expected = format!("for the applications {wrong}:");
        assert!(problems[0].contains(&expected), "{change} {problems:?}");
        assert!(
            problems[0].contains("run `backstitch migrate`"),
            "{problems:?}"
        );
        assert_eq!(recount().await?, [wrong], "{change}");
        assert_eq!(diagnostics().await?, Vec::<String>::new(), "{change}");
        let full = AuthorizeOutcome::CapacityReached {
            connected: 1,
            capacity: 1,
        };
        for application in [1, 2] {
            assert_eq!(
                entity_store.authorize(application, 12, 1).await?,
                full,
                "{change}"
            );
            let already = entity_store.authorize(application, 10, 1).await?;
            assert_eq!(already, AuthorizeOutcome::AlreadyConnected, "{change}");
        }
    }
    Ok(())
}

/// A recount writes no intermediate value above both counts, so no threshold is recorded as reached
/// that was not.
async fn a_recount_reaches_no_threshold(server: Server) -> Result<()> {
    let schema = Schema::new(server).await;
    let entity_store = schema.open_store().await?;
    let mut rows = vec![Entity::Application(application(1, 10))];
    rows.extend((1..=5).map(|id| Entity::Authorization(authorization(id, 1, id))));
    entity_store.apply(&rows, 1).await?;
    schema.run("UPDATE connected SET athletes = 7 WHERE application_id = 1;");
    let recounted = EntityStore::recount(&schema.options, &schema.namespace).await?;
    assert_eq!(recounted, [1]);
    let recorded = entity_store.notices(None, None, 10).await?;
    assert_eq!(recorded, []);
    for athlete in 6..=8 {
        entity_store.authorize(1, athlete, 1).await?;
    }
    let recorded = entity_store.notices(None, None, 10).await?;
    assert_eq!(recorded.len(), 1, "{recorded:?}");
    Ok(())
}

/// More athletes than one lookup covers, some of them without efforts.
async fn many_athletes_are_published_at_once(server: Server) -> Result<()> {
    let schema = Schema::new(server).await;
    let entity_store = schema.open_store().await?;
    let rows = |row: &dyn Fn(i64) -> String| (1..=600).map(row).collect::<Vec<_>>().join(", ");
    schema.run(&format!(
        "INSERT INTO athletes (id) VALUES {};
         {EFFORT} VALUES {};",
        rows(&|id| format!("({id})")),
        rows(&|id| format!("({id}, {}, {}, 1, 60, 5)", id % 5, id % 290)),
    ));
    let all_groups: Groups = (1..=600).map(|id| (id % 5, id % 290)).collect();
    assert_eq!(
        take_groups(&entity_store, Source::Efforts).await?,
        all_groups
    );
    schema.run("UPDATE athletes SET birth_year = 1980; UPDATE athletes SET gender = 'F';");
    let status = entity_store.outbox_status(Source::Efforts).await?;
    assert!(status.newest > 0 && status.notifications > 0, "{status:?}");
    let with_athletes: Groups = all_groups
        .into_iter()
        .filter(|(_, member)| *member > 0)
        .collect();
    assert_eq!(
        take_groups(&entity_store, Source::Efforts).await?,
        with_athletes
    );
    assert_eq!(
        entity_store
            .outbox_status(Source::Efforts)
            .await?
            .notifications,
        0
    );
    assert_eq!(schema.run("SELECT count(*) FROM outbox;"), "0");
    Ok(())
}
