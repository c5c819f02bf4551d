//! Recounts applications, and sends requests that change them.

use rand::Rng;
use rand::rngs::StdRng;
use serde_json::{Value, json};

use crate::rows::Row;
use crate::shared::{SharedState, lock};
use crate::{APPLICATIONS, ATHLETES};

const SELECT_APPLICATIONS: &str = "SELECT o.id, o.name, o.owner, o.athlete_capacity, \
    (SELECT count(DISTINCT x.athlete_id) FROM authorizations x \
    LEFT JOIN athletes a ON a.id = x.athlete_id WHERE x.application_id = o.id \
    AND x.revoked_at_us IS NULL AND NOT coalesce(a.is_deleted, false)) FROM applications o ORDER BY o.id";
/// The usual usage of applications, in percent of their capacity.
const USUAL_USAGE_PERCENT: std::ops::RangeInclusive<i64> = 8..=103;
/// The usage after a change of the capacity, in percent.
const NEW_USAGE_PERCENT: std::ops::RangeInclusive<i64> = 20..=100;

/// Computes the expected answer for all applications.
pub(crate) async fn expected_applications(shared: &SharedState) -> anyhow::Result<Vec<Value>> {
    let expected = |row: Row| {
        let json = |column: usize| serde_json::from_str(row[column].as_deref().unwrap_or("null"));
        let [id, owner, capacity, connected]: [Value; 4] = [json(0)?, json(2)?, json(3)?, json(4)?];
        Ok(json!({
            "id": id, "name": row[1], "owner": owner, "athlete_capacity": capacity,
            "connected_athletes": connected,
        }))
    };
    let rows = shared.query(SELECT_APPLICATIONS).await?;
    rows.into_iter().map(expected).collect()
}

/// Connects or disconnects an athlete or changes a capacity, and verifies the answer. Changes the
/// capacity if an application has an unusual usage.
pub(crate) async fn change_random(shared: &SharedState, rng: &mut StdRng) -> anyhow::Result<()> {
    let mut applications = expected_applications(shared).await?;
    let get_int = |application: &Value, name: &str| application[name].as_i64().unwrap_or(0);
    applications.retain(|application| (1..=APPLICATIONS).contains(&get_int(application, "id")));
    let usage = |application: &Value| {
        let capacity = get_int(application, "athlete_capacity").max(1);
        100 * get_int(application, "connected_athletes") / capacity
    };
    let mut candidates = applications.iter();
    let unusual = candidates.find(|application| !USUAL_USAGE_PERCENT.contains(&usage(application)));
    let index = rng.random_range(0..applications.len().max(1));
    let Some(application) = unusual.or(applications.get(index)) else {
        return Ok(());
    };
    let names = ["id", "connected_athletes", "athlete_capacity"];
    let [id, connected, capacity] = names.map(|name| get_int(application, name));
    let athlete = rng.random_range(1..=ATHLETES);
    let path = format!("/applications/{id}");
    let authorizations = format!("{path}/authorizations");
    let choice = rng.random_range(0..8);
    let (method, path, body, expected) = if choice == 0 || unusual.is_some() {
        let body =
            json!({"athlete_capacity": connected * 100 / rng.random_range(NEW_USAGE_PERCENT)});
        ("PATCH", path, body.clone(), (200, body))
    } else if choice < 4 {
        let path = format!("{authorizations}/{athlete}");
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
                let usage = json!({"connected_athletes": connected, "athlete_capacity": capacity});
                (403, usage)
            }
            None => (201, json!({"athlete_id": athlete})),
        };
        let body = json!({"athlete_id": athlete});
        ("POST", authorizations, body, expected)
    };
    let request = format!("{method} {path} {body}");
    let answer = shared.client.send(method, &path, body.clone()).await?;
    shared.count_answer("request", false);
    shared.compare(&request, &expected, &answer);
    let mut rows = lock(&shared.rows);
    let recorded = match (method, answer.status) {
        _ if shared.setup.seconds.is_none() => Ok(()),
        ("POST", 201) => rows.connect(id, athlete, &answer.body),
        ("DELETE", 204) => {
            rows.disconnect(id, athlete);
            Ok(())
        }
        ("PATCH", 200) => {
            rows.set_capacity(id, &body["athlete_capacity"]);
            Ok(())
        }
        _ => Ok(()),
    };
    if let Err(difference) = recorded {
        lock(&shared.summary).record_difference(&format!("{request}: {difference}"));
    }
    Ok(())
}
