//! How the number of connected athletes was counted: by the board of applications, or anew from the
//! authorizations some time ago, for the classes of applications that are counted so.

use std::collections::BTreeMap;

use jobs::counting::Counting;
use serde::{Deserialize, Serialize};
use stores::admin::Usage;
use stores::recounts::Recounted;
use utoipa::ToSchema;

use crate::answer::shown_ms;
use crate::http::Api;
use crate::http::problem::Problem;

/// How the number of connected athletes was counted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct CountingShown {
    /// increments: every event changed the number. recount: it was counted anew from the authorizations,
    /// at counted_at.
    #[schema(example = "increments")]
    pub(crate) strategy: String,
    /// The class of the application; left out where it is in none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub(crate) class: Option<String>,
    /// When it was counted anew, in UTC: what was committed before is in the number, and what was changed since need
    /// not be. Left out for increments.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false, format = DateTime)]
    pub(crate) counted_at: Option<String>,
}

impl CountingShown {
    /// How an application was counted: with a count that is recorded, by that one.
    pub(super) fn of(counting: &Counting, usage: &Usage, recounted: Option<Recounted>) -> Self {
        let application = &usage.application;
        let class = counting.class_of(application.id, application.athlete_capacity);
        Self {
            strategy: recounted.map_or("increments", |_| "recount").to_owned(),
            class: class.map(|class| class.name().to_owned()),
            counted_at: recounted.map(|recounted| shown_ms(recounted.counted_at_ms)),
        }
    }
}

/// The counts that are recorded, by id, of those applications that are of a class which recounts.
pub(super) async fn recounted(
    api: &Api,
    counting: &Counting,
    usages: &[Usage],
) -> Result<BTreeMap<i64, Recounted>, Problem> {
    let recounts = |usage: &&Usage| {
        let application = &usage.application;
        let policy = counting.policy_of(application.id, application.athlete_capacity);
        policy.is_some()
    };
    let ids = usages.iter().filter(recounts);
    let ids: Vec<i64> = ids.map(|usage| usage.application.id).collect();
    if ids.is_empty() {
        return Ok(BTreeMap::new());
    }
    let found = api.ports.canon.countables(&ids).await?;
    let recorded = found.into_iter();
    let recorded = recorded.filter_map(|found| Some((found.application_id, found.recounted?)));
    Ok(recorded.collect())
}
