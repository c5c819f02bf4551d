//! Applications: what is served of them, and requests that change them, with their recount.

use rand::Rng;
use rand::rngs::StdRng;
use serde_json::{Value, json};

use crate::found::{Row, Shared, lock};
use crate::{APPLICATIONS, ATHLETES};

const SELECT: &str = "SELECT o.id, o.name, o.owner, o.athlete_capacity, \
    (SELECT count(DISTINCT x.athlete_id) FROM authorizations x \
    LEFT JOIN athletes a ON a.id = x.athlete_id WHERE x.application_id = o.id \
    AND x.revoked_at_us IS NULL AND NOT coalesce(a.is_deleted, false)) FROM applications o ORDER BY o.id";
/// How full applications are left, in percent of their capacity; and become when that is changed.
const USAGE: std::ops::RangeInclusive<i64> = 8..=103;
const NEW_USAGE: std::ops::RangeInclusive<i64> = 20..=100;

/// All applications as they must be served.
pub(crate) async fn all(shared: &Shared) -> anyhow::Result<Vec<Value>> {
    let served = |row: Row| {
        let json = |column: usize| serde_json::from_str(row[column].as_deref().unwrap_or("null"));
        let [id, owner, capacity, connected]: [Value; 4] = [json(0)?, json(2)?, json(3)?, json(4)?];
        Ok(json!({
            "id": id, "name": row[1], "owner": owner, "athlete_capacity": capacity,
            "connected_athletes": connected,
        }))
    };
    let rows = shared.query(SELECT).await?;
    rows.into_iter().map(served).collect()
}

/// Connects or disconnects an athlete, or sets a capacity, and compares the answer. An application
/// that is too full or too empty is given another capacity.
pub(crate) async fn change(shared: &Shared, rng: &mut StdRng) -> anyhow::Result<()> {
    let mut ours = all(shared).await?;
    let int = |application: &Value, name: &str| application[name].as_i64().unwrap_or(0);
    ours.retain(|application| (1..=APPLICATIONS).contains(&int(application, "id")));
    let usage =
        |one: &Value| 100 * int(one, "connected_athletes") / int(one, "athlete_capacity").max(1);
    let unusual = ours.iter().find(|one| !USAGE.contains(&usage(one)));
    let index = rng.random_range(0..ours.len().max(1));
    let Some(application) = unusual.or(ours.get(index)) else {
        return Ok(());
    };
    let names = ["id", "connected_athletes", "athlete_capacity"];
    let [id, connected, capacity] = names.map(|name| int(application, name));
    let athlete = rng.random_range(1..=ATHLETES);
    let path = format!("/applications/{id}");
    let athletes = format!("{path}/authorizations");
    let kind = rng.random_range(0..8);
    let (method, path, sent, expected) = if kind == 0 || unusual.is_some() {
        let body = json!({"athlete_capacity": connected * 100 / rng.random_range(NEW_USAGE)});
        ("PATCH", path, body.clone(), (200, body))
    } else if kind < 4 {
        let path = format!("{athletes}/{athlete}");
        ("DELETE", path, Value::Null, (204, Value::Null))
    } else {
        let sql = format!(
            "SELECT 'deleted' FROM athletes WHERE id = {athlete} AND is_deleted UNION ALL \
             SELECT 'connected' FROM authorizations WHERE application_id = {id} \
             AND athlete_id = {athlete} AND revoked_at_us IS NULL"
        );
        let expected = match shared.query(&sql).await?.concat().first() {
            Some(Some(state)) if state == "deleted" => (409, json!({})),
            Some(_) => (200, json!({"id": null})),
            None if connected >= capacity => {
                let full = json!({"connected_athletes": connected, "athlete_capacity": capacity});
                (403, full)
            }
            None => (201, json!({"athlete_id": athlete})),
        };
        let body = json!({"athlete_id": athlete});
        ("POST", athletes, body, expected)
    };
    let question = format!("{method} {path} {sent}");
    let answer = shared.client.send(method, &path, sent.clone()).await?;
    shared.count_answer("request", false);
    shared.compare(&question, &expected, &answer);
    let mut rows = lock(&shared.rows);
    let noted = match (method, answer.status) {
        _ if shared.setup.seconds.is_none() => Ok(()),
        ("POST", 201) => rows.connect(id, athlete, &answer.body),
        ("DELETE", 204) => {
            rows.disconnect(id, athlete);
            Ok(())
        }
        ("PATCH", 200) => {
            rows.set_capacity(id, &sent["athlete_capacity"]);
            Ok(())
        }
        _ => Ok(()),
    };
    if let Err(difference) = noted {
        lock(&shared.summary).differs(&format!("{question}: {difference}"));
    }
    Ok(())
}
