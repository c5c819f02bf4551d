//! What triggers do not see: a state that is newer than their transaction's, cascades, keys that change.

use schemas::entities::Group;
use schemas::source::Source;
use stores::Result;
use stores::canon::CanonRead;
use tests::conformance::canon_rows::effort_rows;

use super::apps::{App, Groups, told};
use super::{Schema, Server};

super::on_both! {
    a_change_in_an_old_transaction_tells_of_newer_efforts
    keys_and_cascades_are_told_of
    an_apps_keys_and_cascades_are_told_of
    many_athletes_are_told_of_at_once
}

const EFFORT: &str =
    "INSERT INTO efforts (id, segment_id, athlete_id, activity_id, elapsed_time_s, started_at_us)";

fn groups(groups: &[(i64, i64)]) -> Groups {
    groups.iter().copied().collect()
}

/// An effort is committed and read while a transaction is open that began before, sees an older state
/// and changes the athlete at last: the effort's group is told of again.
async fn a_change_in_an_old_transaction_tells_of_newer_efforts(server: Server) -> Result<()> {
    let schema = Schema::new(server).await;
    let canon = schema.canon().await?;
    schema.run(&format!(
        "INSERT INTO athletes (id, gender) VALUES (3, 'F');
         {EFFORT} VALUES (1, 1, 3, 1, 60, 5);"
    ));
    assert_eq!(told(&canon, Source::Efforts).await?, groups(&[(1, 3)]));
    let mut expected = vec![(1, 3)];
    for (id, (level, before, after)) in (10..).zip([
        ("READ COMMITTED", "F", "M"),
        ("REPEATABLE READ", "M", "X"),
        ("SERIALIZABLE", "X", "F"),
    ]) {
        let mut app = server.session();
        app.run(&schema.inside());
        app.run(&format!(
            "SET SESSION {} TRANSACTION ISOLATION LEVEL {level};",
            match server {
                Server::Postgres => "CHARACTERISTICS AS",
                Server::MariaDb => "",
            }
        ));
        let seen = app.run("BEGIN; SELECT gender FROM athletes WHERE id = 3;");
        assert_eq!(seen, before);

        schema.run(&format!("{EFFORT} VALUES ({id}, {id}, 3, 1, 60, 5);"));
        assert_eq!(told(&canon, Source::Efforts).await?, groups(&[(id, 3)]));
        let group = Group { key: id, member: 3 };
        let read = effort_rows(&canon.groups(Source::Efforts, &[group]).await?);
        assert_eq!(read[0].gender.as_deref(), Some(before), "{level}");

        app.run(&format!(
            "UPDATE athletes SET gender = '{after}' WHERE id = 3; COMMIT;"
        ));
        expected.push((id, 3));
        assert_eq!(
            told(&canon, Source::Efforts).await?,
            groups(&expected),
            "{level}"
        );
        let read = effort_rows(&canon.groups(Source::Efforts, &[group]).await?);
        assert_eq!(read[0].gender.as_deref(), Some(after), "{level}");
    }
    // What was taken back is not told of.
    schema.run("BEGIN; UPDATE athletes SET gender = NULL; ROLLBACK;");
    assert_eq!(told(&canon, Source::Efforts).await?, groups(&[]));
    Ok(())
}

/// Foreign keys that an app adds to our tables.
async fn keys_and_cascades_are_told_of(server: Server) -> Result<()> {
    let schema = Schema::new(server).await;
    let canon = schema.canon().await?;
    schema.run(&format!(
        "INSERT INTO athletes (id) VALUES (3);
         {EFFORT} VALUES (1, 2, 3, 1, 60, 5), (2, 5, 3, 1, 60, 5);
         ALTER TABLE efforts ADD FOREIGN KEY (athlete_id) REFERENCES athletes (id)
             ON DELETE CASCADE ON UPDATE CASCADE;"
    ));
    told(&canon, Source::Efforts).await?;
    schema.run("UPDATE athletes SET id = 4 WHERE id = 3;");
    let both = groups(&[(2, 3), (5, 3), (2, 4), (5, 4)]);
    assert_eq!(told(&canon, Source::Efforts).await?, both);
    schema.run("DELETE FROM athletes WHERE id = 4;");
    assert_eq!(schema.run("SELECT count(*) FROM efforts;"), "0");
    assert_eq!(
        told(&canon, Source::Efforts).await?,
        groups(&[(2, 4), (5, 4)])
    );
    Ok(())
}

/// The same of an app's own tables, as in the example.
async fn an_apps_keys_and_cascades_are_told_of(server: Server) -> Result<()> {
    let schema = Schema::new(server).await;
    let app = App::new(
        &schema,
        ", FOREIGN KEY (rider_id) REFERENCES app.riders (id) ON DELETE CASCADE ON UPDATE CASCADE",
        "INSERT INTO app.riders (id) VALUES (3);
         INSERT INTO app.rides VALUES (1, 2, 3, 1, 60, '2013-05-06 01:00:00', 'UTC', false, NULL),
             (2, 5, 3, 1, 60, '2013-05-06 01:00:00', 'UTC', false, NULL);",
    );
    let canon = schema.canon().await?;
    schema.run(&app.named("UPDATE app.riders SET id = 4 WHERE id = 3;"));
    let both = groups(&[(2, 3), (5, 3), (2, 4), (5, 4)]);
    assert_eq!(told(&canon, Source::Efforts).await?, both);
    if server == Server::Postgres {
        for table in ["rides", "riders"] {
            let emptied = app.named(&format!("TRUNCATE app.{table} CASCADE;"));
            let refused = server.run(&emptied).expect_err("it can't be told of");
            assert!(refused.contains("delete the rows of"), "{refused}");
        }
    }
    schema.run(&app.named("DELETE FROM app.riders WHERE id = 4;"));
    assert_eq!(
        schema.run(&app.named("SELECT count(*) FROM app.rides;")),
        "0"
    );
    assert_eq!(
        told(&canon, Source::Efforts).await?,
        groups(&[(2, 4), (5, 4)])
    );
    Ok(())
}

/// More athletes than are looked up at once, some of whom have no efforts.
async fn many_athletes_are_told_of_at_once(server: Server) -> Result<()> {
    let schema = Schema::new(server).await;
    let canon = schema.canon().await?;
    let rows = |row: &dyn Fn(i64) -> String| (1..=600).map(row).collect::<Vec<_>>().join(", ");
    schema.run(&format!(
        "INSERT INTO athletes (id) VALUES {};
         {EFFORT} VALUES {};",
        rows(&|id| format!("({id})")),
        rows(&|id| format!("({id}, {}, {}, 1, 60, 5)", id % 5, id % 290)),
    ));
    let all: Groups = (1..=600).map(|id| (id % 5, id % 290)).collect();
    assert_eq!(told(&canon, Source::Efforts).await?, all);
    schema.run("UPDATE athletes SET birth_year = 1980; UPDATE athletes SET gender = 'F';");
    let waiting = canon.waiting(Source::Efforts).await?;
    assert!(
        waiting.newest > 0 && waiting.notifications > 0,
        "{waiting:?}"
    );
    let known: Groups = all.into_iter().filter(|(_, member)| *member > 0).collect();
    assert_eq!(told(&canon, Source::Efforts).await?, known);
    assert_eq!(canon.waiting(Source::Efforts).await?.notifications, 0);
    assert_eq!(schema.run("SELECT count(*) FROM outbox;"), "0");
    Ok(())
}
