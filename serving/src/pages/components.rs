//! Shared parts of the pages: the frame around each page, choices, and small components.

use askama::Template;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use schemas::provenance::Provenance;
use schemas::source::Source;
use stores::names::NamedKind;

use super::api_error::ApiError;
use super::assets::{ASSETS, Assets};
use super::formatting::{Moment, format_number, format_percent};
use super::query::Query;
use crate::http::{Caller, LIMIT_MAX, Problem};

/// Kinds of entities that can be searched for.
pub(crate) const KINDS: [(&str, &str); 5] = [
    ("owner", "Owner"),
    ("track", "Track"),
    ("segment", "Segment"),
    ("athlete", "Athlete"),
    ("application", "Application"),
];

/// Title of a kind of entity.
pub(crate) fn kind_title(named_kind: NamedKind) -> &'static str {
    let kind = KINDS.iter().find(|(kind, _)| *kind == named_kind.name());
    kind.map_or("", |(_, title)| title)
}

/// Data of the frame around every page.
#[derive(Debug, Clone)]
pub(crate) struct PageContext {
    pub(crate) title: String,
    pub(crate) section: &'static str,
    pub(crate) kinds: Vec<(&'static str, &'static str)>,
    /// The kind that the search box offers first.
    pub(crate) kind: &'static str,
    pub(crate) key_name: Option<String>,
    pub(crate) assets: &'static Assets,
    /// Comma-separated sources whose changes the page follows.
    pub(crate) followed_sources: Option<String>,
    /// True if the caller needs no key.
    pub(crate) needs_no_key: bool,
    /// True if the caller may read data of all owners; true without a sign-in, since the key is
    /// unknown.
    pub(crate) reads_all: bool,
    /// Keyboard shortcuts of this page with descriptions.
    pub(crate) shortcuts: &'static [(&'static str, &'static str)],
}

impl PageContext {
    pub(crate) fn new(title: impl Into<String>, section: &'static str, caller: &Caller) -> Self {
        let reads_all = caller.key_id().is_none() || caller.may_read_all();
        let belongs_to_owner = |(kind, _): &(&str, &str)| !matches!(*kind, "segment" | "athlete");
        Self {
            title: title.into(),
            section,
            kinds: KINDS
                .into_iter()
                .filter(|kind| reads_all || belongs_to_owner(kind))
                .collect(),
            kind: "owner",
            key_name: caller.actor(),
            assets: &ASSETS,
            followed_sources: None,
            needs_no_key: caller.key_id().is_none() && caller.may_read_all(),
            reads_all,
            shortcuts: &[],
        }
    }

    pub(crate) fn follow(mut self, source: &str) -> Self {
        self.followed_sources = Some(source.to_owned());
        self
    }

    /// Follows every source that has a log.
    pub(crate) fn follow_all(self) -> Self {
        self.follow(&Source::LOGGED.map(Source::name).join(","))
    }

    pub(crate) const fn with_kind(mut self, kind: &'static str) -> Self {
        self.kind = kind;
        self
    }

    pub(crate) const fn with_shortcuts(
        mut self,
        shortcuts: &'static [(&'static str, &'static str)],
    ) -> Self {
        self.shortcuts = shortcuts;
        self
    }
}

/// Provenance of a number.
#[derive(Debug, Clone, Template)]
#[template(path = "provenance.html")]
pub(crate) struct ProvenanceLabel {
    provenance: Provenance,
}

impl ProvenanceLabel {
    pub(crate) fn new(provenance: &Provenance) -> Self {
        Self {
            provenance: provenance.clone(),
        }
    }
}

/// Links to export the data of a part of the page.
#[derive(Debug, Clone, Template)]
#[template(path = "export.html")]
pub(crate) struct ExportLinks {
    csv: String,
    /// True if the CSV contains more rows than the page, but possibly not all.
    is_partial: bool,
    curl: String,
}

impl ExportLinks {
    /// Builds the export links for an API path of the service at `base_url`.
    pub(crate) fn new(base_url: &str, path: &str, is_paged: bool, caller: &Caller) -> Self {
        let (base_path, query) = path.split_once('?').unwrap_or((path, ""));
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
            csv: format!("{base_path}?{}", pairs.join("&")),
            is_partial: is_paged,
            curl: format!("curl {key}'{base_url}{}'", path.replace('\'', "%27")),
        }
    }
}

/// Renders a page with the status of its main part: `error` is the reason if that part is missing.
pub(crate) fn render_page(page: &impl Template, error: Option<&ApiError>) -> Response {
    let Some(error) = error else {
        return render(StatusCode::OK, page);
    };
    let response = render(error.status(), page);
    let retry_after = HeaderValue::from_static("1");
    with_retry_after(response, error.may_retry().then_some(retry_after))
}

/// An option of a selection.
#[derive(Debug, Clone)]
pub(crate) struct Choice {
    pub(crate) value: String,
    pub(crate) title: String,
    pub(crate) is_selected: bool,
}

/// Builds options with one selected.
pub(crate) fn build_choices(options: &[(&str, &str)], selected: &str) -> Vec<Choice> {
    let choice = |(value, title): &(&str, &str)| Choice {
        value: (*value).to_owned(),
        title: (*title).to_owned(),
        is_selected: *value == selected,
    };
    options.iter().map(choice).collect()
}

/// Builds options as links that set a parameter and go back to the first page of the list.
pub(crate) fn build_tabs<'a>(
    query: &Query,
    page: &str,
    parameter: &str,
    options: impl Iterator<Item = &'a (&'a str, &'a str)>,
    selected: &str,
) -> Vec<Choice> {
    let tab = |(value, title): &(&str, &str)| Choice {
        value: query.link_with(page, &[(parameter, Some(value)), ("cursor", None)]),
        title: (*title).to_owned(),
        is_selected: *value == selected,
    };
    options.map(tab).collect()
}

/// Page that shows a problem.
#[derive(Debug, Template)]
#[template(path = "problem.html")]
pub(crate) struct ProblemPage {
    pub(crate) context: PageContext,
    pub(crate) error: ApiError,
}

/// Adds a `Retry-After` header.
fn with_retry_after(mut response: Response, retry_after: Option<HeaderValue>) -> Response {
    if let Some(value) = retry_after {
        response.headers_mut().insert(header::RETRY_AFTER, value);
    }
    response
}

impl ProblemPage {
    /// Renders a problem as a page.
    pub(crate) fn from_problem(
        caller: &Caller,
        problem: &Problem,
        request_id: Option<&str>,
    ) -> Response {
        let kind = problem.kind();
        let mut error = ApiError::new(kind.status().as_u16(), kind.title(), problem.detail());
        error.request_id = request_id.unwrap_or_default().to_owned();
        with_retry_after(
            Self::render_error(caller, error),
            problem.retry_after_header(),
        )
    }

    pub(crate) fn render_error(caller: &Caller, error: ApiError) -> Response {
        let context = PageContext::new(error.title.clone(), "", caller);
        let status = error.status();
        render(status, &Self { context, error })
    }
}

/// Content security policy: the page may use its own style, script and images, and send requests
/// and forms to this service.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; \
                      base-uri 'none'; form-action 'self'; frame-ancestors 'none'";

/// Renders the page for a problem.
pub(crate) fn render_problem(
    caller: Option<&Caller>,
    problem: &Problem,
    request_id: Option<&str>,
) -> Response {
    // An unauthenticated caller gets no private information.
    let anonymous = Caller::anonymous();
    ProblemPage::from_problem(caller.unwrap_or(&anonymous), problem, request_id)
}

/// Marks a response that is an HTML page of any status.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PageResponse;

/// Renders a page.
pub(crate) fn render(status: StatusCode, page: &impl Template) -> Response {
    let text = match page.render() {
        Ok(text) => text,
        Err(error) => {
            tracing::error!(%error, "cannot render a page");
            return StatusCode::INTERNAL_SERVER_ERROR.into_response();
        }
    };
    let mut response = (status, Html(text)).into_response();
    response.extensions_mut().insert(PageResponse);
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

/// Formats a share as the value of a meter and as text.
pub(crate) fn format_share(share: Option<f64>) -> (String, String) {
    let meter = share.unwrap_or(0.0).clamp(0.0, 1.0);
    (
        format!("{meter:.4}"),
        share.map_or_else(|| "–".to_owned(), format_percent),
    )
}
