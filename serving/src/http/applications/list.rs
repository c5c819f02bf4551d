//! The list of applications: by id, name, number of athletes or how much of the capacity is in use.

use std::sync::Arc;

use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use schemas::provenance::Provenance;
use serde::{Deserialize, Serialize};
use stores::admin::Usage;
use stores::listing::{Listed, Listing, Place, Sort};
use utoipa::ToSchema;

use super::{ApplicationShown, shown};
use crate::answer::ProvenanceShape;
use crate::http::params::{PageQuery, Params};
use crate::http::problem::{Kind, Problem, ProblemShape};
use crate::http::{Api, csv, cursor};

/// The most bytes of a text that is searched for.
const SEARCH_BYTES_MAX: usize = 256;

/// A page of applications.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct Applications {
    /// In the order that was asked for.
    pub(crate) applications: Vec<ApplicationShown>,
    /// Where the next page begins; null on the last one.
    pub(crate) cursor: Option<String>,
    #[schema(value_type = ProvenanceShape)]
    pub(crate) provenance: Provenance,
}

/// The applications. Which come first is decided by the counters that connecting is decided by; the numbers
/// that are shown are those of the board, and may be some moments behind them; of applications that are counted anew now
/// and then, those that were counted last (`counting`).
#[utoipa::path(
    get,
    path = "/api/v1/applications",
    tag = "applications",
    params(
        ("sort" = Option<String>, Query, description = "id (if left out), name, connected or usage: connected athletes by capacity"),
        ("order" = Option<String>, Query, description = "asc or desc; if left out, the largest of connected and usage come first, and the smallest of the others"),
        ("search" = Option<String>, Query, description = "Applications whose id is this, or in whose name or owner this is found, whatever the case"),
        ("owner" = Option<String>, Query, description = "Applications of this owner; a key of one owner has to say it"),
        ("usage_from" = Option<f64>, Query, description = "Applications of whose capacity at least this part is in use: 0.8 for 80 %"),
        PageQuery
    ),
    responses(
        (status = 200, description = "A page of applications", body = Applications),
        (status = 409, description = "Authorizations are a view of an app's own table: nobody counts them to sort by", body = ProblemShape, content_type = "application/problem+json")
    )
)]
pub(crate) async fn list(State(api): State<Arc<Api>>, uri: Uri) -> Result<Response, Problem> {
    let own = ["sort", "order", "search", "owner", "usage_from"];
    let (params, query) = PageQuery::read(&uri, &own)?;
    let listing = listing(&params)?;
    let fingerprint = cursor::fingerprint(&format!("applications?{}", params.question()));
    let (after, limit) = (query.start(fingerprint, cursor::last)?, query.limit);
    // Each may look through all of them.
    let _turn = api.listings.acquire().await;
    let listed = listing.first(&*api.ports.canon, after, limit + 1).await?;
    let Listed::Found(mut found) = listed else {
        return Err(Kind::ManagedElsewhere.with_detail(
            "authorizations are a view of an app's own tables, and the database does not count their athletes: sort by id or name, and leave usage_from out",
        ));
    };
    let after = |(place, _): &(Place, Usage)| cursor::after(fingerprint, place);
    let next = cursor::page(&mut found, limit, after);
    let usages = found.into_iter().map(|(_, usage)| usage).collect();
    let (applications, provenance) = shown(&api, usages).await?;
    let page = Applications {
        applications,
        cursor: next.clone(),
        provenance,
    };
    Ok(query.answer(&uri, next.as_deref(), page, |page| {
        as_csv(&page.applications, &page.provenance)
    }))
}

pub(super) fn as_csv(applications: &[ApplicationShown], provenance: &Provenance) -> Response {
    let header = "id,name,owner,connected_athletes,athlete_capacity,enforced,usage,strategy,class,counted_at";
    let rows = applications.iter().map(|application| {
        let mut row = serde_json::to_value(application).unwrap_or_default();
        for name in ["strategy", "class", "counted_at"] {
            row[name] = row["counting"][name].clone();
        }
        row
    });
    csv::objects(header, rows, Some(provenance))
}

/// What is asked of the list.
fn listing(params: &Params) -> Result<Listing, Problem> {
    let sorts = [
        ("id", Sort::Id),
        ("name", Sort::Name),
        ("connected", Sort::Connected),
        ("usage", Sort::Usage),
    ];
    let sort = params.choice("sort", &sorts)?.unwrap_or(Sort::Id);
    let descends = params.choice("order", &[("asc", false), ("desc", true)])?;
    let search = params.get("search").map(str::to_owned);
    if search
        .as_ref()
        .is_some_and(|text| text.is_empty() || text.len() > SEARCH_BYTES_MAX)
    {
        return Err(Problem::parameter(format!(
            "search is empty or longer than {SEARCH_BYTES_MAX} bytes: write a part of a name, or leave it out"
        )));
    }
    let usage_from = params.parsed("usage_from", |_, text| {
        let part = text.parse().ok();
        part.filter(|part: &f64| part.is_finite() && *part >= 0.0)
            .ok_or_else(|| {
                Problem::parameter(format!(
                    "usage_from={text:?} is not a part of the capacity such as 0.8"
                ))
            })
    });
    Ok(Listing {
        sort,
        descends: descends.unwrap_or(sort.descends()),
        search,
        owner: params.get("owner").map(str::to_owned),
        usage_from: usage_from?,
    })
}
