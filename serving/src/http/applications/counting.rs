//! How connected athletes were counted: by the board of applications, or by a periodic recount of
//! the authorizations for some classes of applications.

use std::collections::BTreeMap;

use jobs::counting::CountingClasses;
use serde::{Deserialize, Serialize};
use stores::admin::ApplicationUsage;
use stores::recounts::RecordedCount;
use utoipa::ToSchema;

use crate::answer::format_ms;
use crate::http::Api;
use crate::http::problem::Problem;

/// How connected athletes were counted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct CountingResponse {
    /// increments: each event changes the number. recount: the authorizations were counted at
    /// counted_at.
    #[schema(example = "increments")]
    pub(crate) strategy: String,
    /// The class of the application, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub(crate) class: Option<String>,
    /// When the authorizations were counted, in UTC. The number includes all changes before that,
    /// and possibly later ones. Absent for increments.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false, format = DateTime)]
    pub(crate) counted_at: Option<String>,
}

impl CountingResponse {
    /// Describes the count of an application: the recount if there is one.
    pub(super) fn new(
        counting: &CountingClasses,
        usage: &ApplicationUsage,
        recounted: Option<RecordedCount>,
    ) -> Self {
        let application = &usage.application;
        let class = counting.find_class(application.id, application.athlete_capacity);
        Self {
            strategy: recounted.map_or("increments", |_| "recount").to_owned(),
            class: class.map(|class| class.name().to_owned()),
            counted_at: recounted.map(|recounted| format_ms(recounted.counted_at_ms)),
        }
    }
}

/// Reads the recounts of applications whose class uses them, by id.
pub(super) async fn read_recounts(
    api: &Api,
    counting: &CountingClasses,
    usages: &[ApplicationUsage],
) -> Result<BTreeMap<i64, RecordedCount>, Problem> {
    let is_recounted = |usage: &&ApplicationUsage| {
        let application = &usage.application;
        let policy = counting.find_policy(application.id, application.athlete_capacity);
        policy.is_some()
    };
    let ids = usages.iter().filter(is_recounted);
    let ids: Vec<i64> = ids.map(|usage| usage.application.id).collect();
    if ids.is_empty() {
        return Ok(BTreeMap::new());
    }
    let counts = api.ports.entities.counted_applications(&ids).await?;
    let recorded = counts.into_iter();
    let recorded = recorded.filter_map(|count| Some((count.application_id, count.recorded?)));
    Ok(recorded.collect())
}
