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

pub(super) const ENTITY_PROVENANCE: EntityProvenance = EntityProvenance {
    source: "canonical",
    complete: true,
};

/// Reads an application with its number of connected athletes.
pub(super) async fn find_usage(api: &Api, id: i64) -> Result<ApplicationUsage, Problem> {
    let usage = api.ports.entities.usages_by_id(&[id]).await?.pop();
    usage.ok_or_else(|| unknown_application(id))
}

/// Converts the error of a write. A row that is managed in another database cannot be changed here.
pub(super) fn map_write_error(error: stores::Error) -> Problem {
    match error {
        stores::Error::Refused(detail) => ProblemKind::ManagedElsewhere.with_detail(detail),
        error => error.into(),
    }
}

pub(super) fn unknown_application(application_id: i64) -> Problem {
    ProblemKind::UnknownApplication.with_detail(format!(
        "unknown application {application_id}: ingest it as a line of applications first"
    ))
}
