//! The list of applications, ordered by id, name, connected athletes or usage.

use std::sync::Arc;

use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use schemas::provenance::Provenance;
use serde::{Deserialize, Serialize};
use stores::admin::ApplicationUsage;
use stores::listing::{ApplicationListing, ApplicationSort, ListingCursor, ListingPage};
use utoipa::ToSchema;

use super::response::{ApplicationResponse, build_application_responses};
use crate::answer::ProvenanceShape;
use crate::http::params::{PageQuery, Params};
use crate::http::problem::{Problem, ProblemKind, ProblemShape};
use crate::http::{Api, csv, cursor};

/// Maximum length of a search text, in bytes.
const SEARCH_BYTES_MAX: usize = 256;

/// A page of applications.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = Applications)]
pub(crate) struct ApplicationsPage {
    /// In the requested order.
    pub(crate) applications: Vec<ApplicationResponse>,
    /// The cursor of the next page; null on the last one.
    pub(crate) cursor: Option<String>,
    #[schema(value_type = ProvenanceShape)]
    pub(crate) provenance: Provenance,
}

/// The applications.
///
/// The order follows the counters that enforce the capacity. The numbers in the response come from
/// the board, which may lag behind by moments, or from the last recount (see `counting`).
#[utoipa::path(
    get,
    path = "/api/v1/applications",
    tag = "applications",
    params(
        ("sort" = Option<String>, Query, description = "id (default), name, connected or usage (connected athletes / capacity)"),
        ("order" = Option<String>, Query, description = "asc or desc; default desc for connected and usage, asc for the others"),
        ("search" = Option<String>, Query, description = "Only applications with this id, or with this text in their name or owner, ignoring case"),
        ("owner" = Option<String>, Query, description = "Only applications of this owner; required for a key that may read only some owners"),
        ("usage_from" = Option<f64>, Query, description = "Only applications with at least this usage: 0.8 for 80 %"),
        PageQuery
    ),
    responses(
        (status = 200, description = "A page of applications", body = ApplicationsPage),
        (status = 409, description = "Authorizations are managed in another database, which has no counters to sort or filter by", body = ProblemShape, content_type = "application/problem+json")
    )
)]
pub(crate) async fn list_applications(
    State(api): State<Arc<Api>>,
    uri: Uri,
) -> Result<Response, Problem> {
    let other_params = ["sort", "order", "search", "owner", "usage_from"];
    let (params, query) = PageQuery::parse(&uri, &other_params)?;
    let listing = parse_listing(&params)?;
    let fingerprint =
        cursor::compute_fingerprint(&format!("applications?{}", params.canonical_query()));
    let (start, limit) = (
        query.decode_start(fingerprint, cursor::decode)?,
        query.limit,
    );
    // A list may scan all applications.
    let _permit = api.application_list_permits.acquire().await;
    let listed = listing
        .read_page(&*api.ports.entities, start, limit + 1)
        .await?;
    let ListingPage::Entries(mut entries) = listed else {
        return Err(ProblemKind::ManagedElsewhere.with_detail(
            "authorizations are managed in another database, which has no counters of athletes: sort by id or name, and leave out usage_from",
        ));
    };
    let encode_cursor =
        |(position, _): &(ListingCursor, ApplicationUsage)| cursor::encode(fingerprint, position);
    let next_cursor = cursor::truncate_page(&mut entries, limit, encode_cursor);
    let usages = entries.into_iter().map(|(_, usage)| usage).collect();
    let (applications, provenance) = build_application_responses(&api, usages).await?;
    let page = ApplicationsPage {
        applications,
        cursor: next_cursor.clone(),
        provenance,
    };
    Ok(query.respond(&uri, next_cursor.as_deref(), page, |page| {
        write_csv(&page.applications, &page.provenance)
    }))
}

pub(super) fn write_csv(applications: &[ApplicationResponse], provenance: &Provenance) -> Response {
    let header = "id,name,owner,connected_athletes,athlete_capacity,enforced,usage,strategy,class,counted_at";
    let rows = applications.iter().map(|application| {
        let mut row = serde_json::to_value(application).unwrap_or_default();
        for name in ["strategy", "class", "counted_at"] {
            row[name] = row["counting"][name].clone();
        }
        row
    });
    csv::write_objects(header, rows, Some(provenance))
}

/// Parses the order and the filters of the list.
fn parse_listing(params: &Params) -> Result<ApplicationListing, Problem> {
    let sorts = [
        ("id", ApplicationSort::Id),
        ("name", ApplicationSort::Name),
        ("connected", ApplicationSort::Connected),
        ("usage", ApplicationSort::Usage),
    ];
    let sort = params
        .parse_choice("sort", &sorts)?
        .unwrap_or(ApplicationSort::Id);
    let is_descending = params.parse_choice("order", &[("asc", false), ("desc", true)])?;
    let search = params.get("search").map(str::to_owned);
    if search
        .as_ref()
        .is_some_and(|text| text.is_empty() || text.len() > SEARCH_BYTES_MAX)
    {
        return Err(Problem::parameter(format!(
            "search is empty or longer than {SEARCH_BYTES_MAX} bytes: send a part of a name, or leave it out"
        )));
    }
    let usage_from = params.parse_with("usage_from", |_, text| {
        let usage = text.parse().ok();
        usage
            .filter(|usage: &f64| usage.is_finite() && *usage >= 0.0)
            .ok_or_else(|| {
                Problem::parameter(format!("usage_from={text:?} is not a number such as 0.8"))
            })
    });
    Ok(ApplicationListing {
        sort,
        is_descending: is_descending.unwrap_or(sort.is_descending()),
        search,
        owner: params.get("owner").map(str::to_owned),
        usage_from: usage_from?,
    })
}
