//! What several pages have in common: the frame around each, choices, and small parts that are written alike.

use askama::Template;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use schemas::source::Source;
use stores::names::Named;

use super::api::Provenance;
use super::ask::ApiError;
use super::assets::{ASSETS, Assets};
use super::query::Query;
use super::shown::{self, Moment};
use crate::http::{Caller, LIMIT_MAX, Page, Problem};

/// What somebody can look for.
pub(crate) const KINDS: [(&str, &str); 5] = [
    ("owner", "Owner"),
    ("track", "Track"),
    ("segment", "Segment"),
    ("athlete", "Athlete"),
    ("application", "Application"),
];

/// The title of something that can be looked for.
pub(crate) fn kind_title(of: Named) -> &'static str {
    let kind = KINDS.iter().find(|(kind, _)| *kind == of.name());
    kind.map_or("", |(_, title)| title)
}

/// What is around every page.
#[derive(Debug, Clone)]
pub(crate) struct Frame {
    pub(crate) title: String,
    pub(crate) section: &'static str,
    pub(crate) kinds: Vec<(&'static str, &'static str)>,
    /// What was looked for last.
    pub(crate) kind: &'static str,
    pub(crate) who: Option<String>,
    pub(crate) assets: &'static Assets,
    /// The sources whose changes the page follows, with commas between.
    pub(crate) follow: Option<String>,
    /// Whether who looks needs no key.
    pub(crate) is_here: bool,
    /// Whether the key of who looks reads what is of nobody in particular; who is not signed in may have one that does.
    pub(crate) reads_all: bool,
    /// Keys of this page, with what they do.
    pub(crate) keys: &'static [(&'static str, &'static str)],
}

impl Frame {
    pub(crate) fn new(title: impl Into<String>, section: &'static str, caller: &Caller) -> Self {
        let reads_all = caller.key_id().is_none() || caller.may_read_all();
        let is_of_owners = |(kind, _): &(&str, &str)| !matches!(*kind, "segment" | "athlete");
        Self {
            title: title.into(),
            section,
            kinds: KINDS
                .into_iter()
                .filter(|kind| reads_all || is_of_owners(kind))
                .collect(),
            kind: "owner",
            who: caller.actor(),
            assets: &ASSETS,
            follow: None,
            is_here: caller.key_id().is_none() && caller.may_read_all(),
            reads_all,
            keys: &[],
        }
    }

    pub(crate) fn following(mut self, source: &str) -> Self {
        self.follow = Some(source.to_owned());
        self
    }

    /// Follows every source that has a log.
    pub(crate) fn following_all(self) -> Self {
        self.following(&Source::LOGGED.map(Source::name).join(","))
    }

    pub(crate) const fn of_kind(mut self, kind: &'static str) -> Self {
        self.kind = kind;
        self
    }

    pub(crate) const fn with_keys(mut self, keys: &'static [(&'static str, &'static str)]) -> Self {
        self.keys = keys;
        self
    }
}

/// Where a number comes from.
#[derive(Debug, Clone, Template)]
#[template(path = "from.html")]
pub(crate) struct From {
    of: Provenance,
}

impl From {
    pub(crate) fn of(provenance: &Provenance) -> Self {
        let of = provenance.clone();
        Self { of }
    }
}

/// The same numbers for machines.
#[derive(Debug, Clone, Template)]
#[template(path = "tools.html")]
pub(crate) struct Tools {
    csv: String,
    /// Whether that has more rows than the page shows, and may have fewer than there are.
    is_part: bool,
    curl: String,
}

impl Tools {
    /// The tools for a path of the service at `base`.
    pub(crate) fn new((base, path): (&str, &str), is_paged: bool, caller: &Caller) -> Self {
        let (of, query) = path.split_once('?').unwrap_or((path, ""));
        let is_kept = |pair: &&str| !(pair.is_empty() || is_paged && pair.starts_with("limit="));
        let mut pairs: Vec<&str> = query.split('&').filter(is_kept).collect();
        let limit = format!("limit={LIMIT_MAX}");
        pairs.extend(is_paged.then_some(limit.as_str()));
        pairs.push("format=csv");
        let key = match caller.actor() {
            Some(_) => "-H \"Authorization: Bearer $BACKSTITCH_KEY\" ",
            None => "",
        };
        Self {
            csv: format!("{of}?{}", pairs.join("&")),
            is_part: is_paged,
            curl: format!("curl {key}'{base}{}'", path.replace('\'', "%27")),
        }
    }
}

/// A page, with the status of what it is about: `error` says why that is not shown. What else it has may be there.
pub(crate) fn answered(page: &impl Template, error: Option<&ApiError>) -> Response {
    let Some(error) = error else {
        return rendered(StatusCode::OK, page);
    };
    let response = rendered(error.status(), page);
    let soon = HeaderValue::from_static("1");
    asked_again(response, error.may_pass().then_some(soon))
}

/// One of several things to choose.
#[derive(Debug, Clone)]
pub(crate) struct Choice {
    pub(crate) value: String,
    pub(crate) title: String,
    pub(crate) is_chosen: bool,
}

/// All choices, of which one is chosen.
pub(crate) fn choices(of: &[(&str, &str)], chosen: &str) -> Vec<Choice> {
    let choice = |(value, title): &(&str, &str)| Choice {
        value: (*value).to_owned(),
        title: (*title).to_owned(),
        is_chosen: *value == chosen,
    };
    of.iter().map(choice).collect()
}

/// Choices of a value of a parameter, each as a link to the first part of the list.
pub(crate) fn tabs<'a>(
    (query, page, parameter): (&Query, &str, &str),
    of: impl Iterator<Item = &'a (&'a str, &'a str)>,
    chosen: &str,
) -> Vec<Choice> {
    let tab = |(value, title): &(&str, &str)| Choice {
        value: query.with(page, &[(parameter, Some(value)), ("cursor", None)]),
        title: (*title).to_owned(),
        is_chosen: *value == chosen,
    };
    of.map(tab).collect()
}

/// A page for a problem.
#[derive(Debug, Template)]
#[template(path = "problem.html")]
pub(crate) struct ProblemPage {
    pub(crate) frame: Frame,
    pub(crate) error: ApiError,
}

/// A response which says after how many seconds to ask again, where that may help.
fn asked_again(mut response: Response, after: Option<HeaderValue>) -> Response {
    if let Some(after) = after {
        response.headers_mut().insert(header::RETRY_AFTER, after);
    }
    response
}

impl ProblemPage {
    /// The page for who reads pages rather than documents.
    pub(crate) fn of(caller: &Caller, problem: &Problem, request_id: Option<&str>) -> Response {
        let kind = problem.kind();
        let mut error = ApiError::own(kind.status().as_u16(), kind.title(), problem.detail());
        error.request_id = request_id.unwrap_or_default().to_owned();
        asked_again(Self::response(caller, error), problem.ask_again())
    }

    pub(crate) fn response(caller: &Caller, error: ApiError) -> Response {
        let frame = Frame::new(error.title.clone(), "", caller);
        let status = error.status();
        rendered(status, &Self { frame, error })
    }
}

/// What a page may do in a browser: use its own style, script and pictures, ask this service, and send its forms to it.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; \
                      base-uri 'none'; form-action 'self'; frame-ancestors 'none'";

/// A page as a response.
pub(crate) fn rendered(status: StatusCode, page: &impl Template) -> Response {
    let text = match page.render() {
        Ok(text) => text,
        Err(error) => {
            tracing::error!(%error, "a page can't be written");
            return StatusCode::INTERNAL_SERVER_ERROR.into_response();
        }
    };
    let mut response = (status, Html(text)).into_response();
    response.extensions_mut().insert(Page);
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static(POLICY),
    );
    headers.insert(
        header::REFERRER_POLICY,
        HeaderValue::from_static("same-origin"),
    );
    headers.insert(
        header::HeaderName::from_static("cross-origin-opener-policy"),
        HeaderValue::from_static("same-origin"),
    );
    response
}

/// The text of a share and its part, for a meter.
pub(crate) fn share(of: Option<f64>) -> (String, String) {
    let share = of.unwrap_or(0.0).clamp(0.0, 1.0);
    (
        format!("{share:.4}"),
        of.map_or_else(|| "–".to_owned(), shown::percent),
    )
}
