//! The list of applications: by id, name, number of athletes or how much of the capacity is in use.

use std::cmp::Ordering;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::Uri;
use axum::response::{IntoResponse, Response};
use schemas::provenance::Provenance;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use stores::admin::Usage;
use utoipa::ToSchema;

use super::counting::CountingShown;
use super::{ApplicationShown, shown};
use crate::answer::ProvenanceShape;
use crate::http::params::{Format, Params};
use crate::http::problem::{Kind, Problem, ProblemShape};
use crate::http::stats::link_to_next;
use crate::http::{Api, csv, cursor};

/// Applications that are looked at at once.
const STEP: usize = 1_000;
/// The most bytes of a text that is searched for.
const SEARCH_BYTES_MAX: usize = 256;

/// A page of applications.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(crate) struct Applications {
    /// In the order that was asked for.
    applications: Vec<ApplicationShown>,
    /// Where the next page begins; null on the last one.
    cursor: Option<String>,
    #[schema(value_type = ProvenanceShape)]
    provenance: Provenance,
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
        ("usage_from" = Option<f64>, Query, description = "Applications of whose capacity at least this part is in use: 0.8 for 80 %"),
        ("limit" = Option<usize>, Query, description = "Applications of a page, at most 1,000; 50 if left out"),
        ("cursor" = Option<String>, Query, description = "cursor of the page before"),
        ("format" = Option<String>, Query, description = "json or csv; the header Link leads to the next page")
    ),
    responses(
        (status = 200, description = "A page of applications", body = Applications),
        (status = 400, description = "A parameter can't be used", body = ProblemShape, content_type = "application/problem+json"),
        (status = 409, description = "Authorizations are a view of an app's own table: nobody counts them to sort by", body = ProblemShape, content_type = "application/problem+json"),
        (status = 503, description = "Not whole yet, or a store does not answer", body = ProblemShape, content_type = "application/problem+json")
    )
)]
pub(crate) async fn list(State(api): State<Arc<Api>>, uri: Uri) -> Result<Response, Problem> {
    let known = [
        "sort",
        "order",
        "search",
        "usage_from",
        "limit",
        "cursor",
        "format",
    ];
    let params = Params::read(&uri, &known)?;
    let (limit, format) = (params.limit()?, params.format()?);
    let asked = Asked::read(&params)?;
    let fingerprint = cursor::fingerprint(&format!("applications?{}", params.question()));
    let after = params
        .get("cursor")
        .map(|text| cursor::of_application(fingerprint, text))
        .transpose()?;
    let mut found = asked.first(&api, after, limit + 1).await?;
    let after = |(place, _): &(Place, Usage)| cursor::after_application(fingerprint, place);
    let next = cursor::page(&mut found, limit, after);
    let usages = found.into_iter().map(|(_, usage)| usage).collect();
    let (applications, provenance) = shown(&api, usages).await?;
    let link = next
        .as_deref()
        .and_then(|cursor| link_to_next(&uri, cursor, None));
    let answer = match format {
        Format::Json => Json(Applications {
            applications,
            cursor: next,
            provenance,
        })
        .into_response(),
        Format::Csv => as_csv(applications, &provenance),
    };
    Ok((link.map(|link| [link]), answer).into_response())
}

fn as_csv(applications: Vec<ApplicationShown>, provenance: &Provenance) -> Response {
    let names = [
        "id",
        "name",
        "owner",
        "connected_athletes",
        "athlete_capacity",
        "enforced",
        "usage",
        "strategy",
        "class",
        "counted_at",
    ];
    let rows = applications.into_iter().map(|application| {
        let owner = match application.owner {
            Value::String(text) => text,
            other => other.to_string(),
        };
        let counts = (application.connected_athletes, application.athlete_capacity);
        let limits = (application.enforced, application.usage);
        let CountingShown {
            strategy,
            class,
            counted_at,
        } = application.counting;
        let counting = (strategy, class, counted_at);
        (
            application.id,
            application.name,
            owner,
            counts,
            limits,
            counting,
        )
    });
    csv::list(&names, rows.collect(), Some(provenance))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sort {
    Id,
    Name,
    Connected,
    Usage,
}

/// Where an application stands in an order: its id decides where the rest is equal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Place {
    key: Key,
    id: i64,
}

/// What applications are put in order by.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
enum Key {
    Nothing(()),
    Text(String),
    /// Parts of a whole: exact, whatever the size.
    Parts(u64, u64),
}

impl Key {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Text(one), Self::Text(other)) => one.cmp(other),
            (Self::Parts(part, whole), Self::Parts(of, all)) => {
                let product = |one: u64, other: u64| u128::from(one) * u128::from(other);
                product(*part, *all).cmp(&product(*of, *whole))
            }
            // Keys of one question are of one kind.
            _ => Ordering::Equal,
        }
    }
}

/// Connected athletes and capacity. Where nobody may connect all of it is in use once somebody is, and
/// more than of any other.
fn parts(usage: &Usage) -> (u64, u64) {
    let connected = u64::try_from(usage.connected.unwrap_or_default()).unwrap_or_default();
    match u64::try_from(usage.application.athlete_capacity) {
        Ok(capacity) if capacity > 0 => (connected, capacity),
        _ if connected > 0 => (1, 0),
        _ => (0, 1),
    }
}

/// What is asked of the list.
#[derive(Debug)]
struct Asked {
    sort: Sort,
    descends: bool,
    search: Option<String>,
    usage_from: Option<f64>,
}

impl Asked {
    fn read(params: &Params) -> Result<Self, Problem> {
        let sort = match params.get("sort") {
            None | Some("id") => Sort::Id,
            Some("name") => Sort::Name,
            Some("connected") => Sort::Connected,
            Some("usage") => Sort::Usage,
            Some(other) => {
                return Err(Problem::parameter(format!(
                    "sort={other:?} is unknown: write id, name, connected or usage"
                )));
            }
        };
        let descends = match params.get("order") {
            None => matches!(sort, Sort::Connected | Sort::Usage),
            Some("asc") => false,
            Some("desc") => true,
            Some(other) => {
                return Err(Problem::parameter(format!(
                    "order={other:?} is unknown: write asc or desc"
                )));
            }
        };
        let search = params.get("search").map(str::to_lowercase);
        if search
            .as_ref()
            .is_some_and(|text| text.is_empty() || text.len() > SEARCH_BYTES_MAX)
        {
            return Err(Problem::parameter(format!(
                "search is empty or longer than {SEARCH_BYTES_MAX} bytes: write a part of a name, or leave it out"
            )));
        }
        let usage_from = params.get("usage_from").map(|text| {
            let part = text.parse::<f64>().ok();
            part.filter(|part| part.is_finite() && *part >= 0.0)
                .ok_or_else(|| {
                    Problem::parameter(format!(
                        "usage_from={text:?} is not a part of the capacity such as 0.8"
                    ))
                })
        });
        Ok(Self {
            sort,
            descends,
            search,
            usage_from: usage_from.transpose()?,
        })
    }

    fn place(&self, usage: &Usage) -> Place {
        let key = match self.sort {
            Sort::Id => Key::Nothing(()),
            Sort::Name => Key::Text(usage.application.name.to_lowercase()),
            Sort::Connected => {
                let connected = usage.connected.unwrap_or_default();
                Key::Parts(u64::try_from(connected).unwrap_or_default(), 1)
            }
            Sort::Usage => {
                let (part, whole) = parts(usage);
                Key::Parts(part, whole)
            }
        };
        Place {
            key,
            id: usage.application.id,
        }
    }

    fn order(&self, one: &Place, other: &Place) -> Ordering {
        let order = (one.key.cmp(&other.key)).then_with(|| one.id.cmp(&other.id));
        match self.descends {
            true => order.reverse(),
            false => order,
        }
    }

    fn is_among(&self, usage: &Usage) -> bool {
        let application = &usage.application;
        let is_found = self.search.as_deref().is_none_or(|search| {
            let owner = match &application.owner {
                Value::String(text) => text.to_lowercase(),
                other => other.to_string(),
            };
            application.id.to_string() == search
                || application.name.to_lowercase().contains(search)
                || owner.contains(search)
        });
        #[expect(
            clippy::cast_precision_loss,
            reason = "the part is given with as few digits"
        )]
        let is_used = self.usage_from.is_none_or(|from| {
            let (part, whole) = parts(usage);
            part as f64 / whole as f64 >= from
        });
        is_found && is_used
    }

    /// Whether it takes what the database counts.
    const fn needs_counters(&self) -> bool {
        matches!(self.sort, Sort::Connected | Sort::Usage) || self.usage_from.is_some()
    }

    /// The first of those that are asked for after a place, in order, at most `limit`. All applications are
    /// looked at, some at a time, unless they come in the order that they are asked for in.
    async fn first(
        &self,
        api: &Api,
        after: Option<Place>,
        limit: usize,
    ) -> Result<Vec<(Place, Usage)>, Problem> {
        let in_order = self.sort == Sort::Id && !self.descends;
        let mut found: Vec<(Place, Usage)> = Vec::new();
        let mut read = match &after {
            Some(place) if in_order => Some(place.id),
            _ => None,
        };
        loop {
            let is_filtered = self.search.is_some() || self.usage_from.is_some();
            let step = if in_order && !is_filtered {
                limit
            } else {
                STEP
            };
            let usages = api.ports.canon.usages(read, step).await?;
            let is_last = usages.len() < step;
            read = usages.last().map(|usage| usage.application.id);
            if self.needs_counters() && usages.iter().any(|usage| usage.connected.is_none()) {
                return Err(Problem::new(
                    Kind::ManagedElsewhere,
                    "authorizations are a view of an app's own tables, and the database does not count their athletes: sort by id or name, and leave usage_from out",
                ));
            }
            for usage in usages {
                let place = self.place(&usage);
                let is_later = |after: &Place| self.order(after, &place).is_lt();
                if !after.as_ref().is_none_or(is_later) || !self.is_among(&usage) {
                    continue;
                }
                found.push((place, usage));
            }
            found.sort_by(|(one, _), (other, _)| self.order(one, other));
            found.truncate(limit);
            if is_last || (in_order && found.len() == limit) {
                return Ok(found);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_compared_exactly() {
        let most = u64::MAX;
        let order = [
            Key::Parts(0, most),
            Key::Parts(1, most),
            Key::Parts(1, most - 1),
            Key::Parts(most - 2, most - 1),
            Key::Parts(most - 1, most),
            Key::Parts(1, 1),
            Key::Parts(1, 0),
        ];
        for pair in order.windows(2) {
            assert_eq!(pair[0].cmp(&pair[1]), Ordering::Less, "{pair:?}");
            assert_eq!(pair[1].cmp(&pair[0]), Ordering::Greater, "{pair:?}");
        }
        assert_eq!(Key::Parts(2, 4).cmp(&Key::Parts(1, 2)), Ordering::Equal);
    }
}
