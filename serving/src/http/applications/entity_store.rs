//! Applications in the entity store: lookup by id, provenance of responses, problems of writes.

use serde::Serialize;
use stores::admin::ApplicationUsage;
use utoipa::ToSchema;

use crate::http::Api;
use crate::http::problem::{Problem, ProblemKind};

/// The provenance of a response from the entity store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct EntityProvenance {
    /// canonical
    source: &'static str,
    /// Always true: the response has everything that was committed before it.
    complete: bool,
}

pub(super) const CANONICAL: EntityProvenance = EntityProvenance {
    source: "canonical",
    complete: true,
};

pub(super) async fn find_usage(api: &Api, id: i64) -> Result<ApplicationUsage, Problem> {
    let found = api.ports.entities.usages_by_id(&[id]).await?.pop();
    found.ok_or_else(|| unknown_application(id))
}

/// The problem of a failed write. Rows in another application's database cannot be changed here.
pub(super) fn write_problem(error: stores::Error) -> Problem {
    match error {
        stores::Error::Refused(why) => ProblemKind::ManagedElsewhere.with_detail(why),
        error => error.into(),
    }
}

pub(super) fn unknown_application(application: i64) -> Problem {
    ProblemKind::UnknownApplication.with_detail(format!(
        "unknown application {application}: ingest it as a line of applications first"
    ))
}
