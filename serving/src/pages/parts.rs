//! What several pages have in common: the frame around each, choices, and small parts that are written alike.

use askama::Template;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use schemas::source::Source;

use super::api::{EntryShape, Provenance};
use super::ask::{ApiError, Called};
use super::assets::{ASSETS, Assets};
use super::shown::{self, Moment, duration, number};
use crate::http::{Caller, LIMIT_MAX, Page, Problem};

/// What somebody can look for.
pub(crate) const KINDS: [(&str, &str); 5] = [
    ("owner", "Owner"),
    ("track", "Track"),
    ("segment", "Segment"),
    ("athlete", "Athlete"),
    ("application", "Application"),
];

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

    /// With what was looked for, if that is something that can be.
    pub(crate) fn looking_for(mut self, what: &str) -> Self {
        if let Some((kind, _)) = KINDS.iter().find(|(kind, _)| *kind == what) {
            self.kind = kind;
        }
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
    /// batch, realtime, merged or canonical.
    source: &'static str,
    as_of: Option<Moment>,
    epoch: u64,
    complete: bool,
}

impl From {
    pub(crate) fn of(provenance: &Provenance) -> Self {
        Self {
            source: provenance.source.name(),
            as_of: provenance.as_of.as_deref().map(Moment::utc),
            epoch: provenance.epoch,
            complete: provenance.complete,
        }
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

/// A page that is about something.
pub(crate) trait About: Template {
    /// Why that is not shown; what else the page has may be there.
    fn error(&self) -> Option<&ApiError>;

    /// The page, with the status of what it is about.
    fn response(&self) -> Response
    where
        Self: Sized,
    {
        let Some(error) = self.error() else {
            return rendered(StatusCode::OK, self);
        };
        let response = rendered(error.status(), self);
        let soon = HeaderValue::from_static("1");
        asked_again(response, error.may_pass().then_some(soon))
    }
}

/// What each page is about.
macro_rules! about {
    ($page:ty, $part:ident) => {
        impl $crate::pages::parts::About for $page {
            fn error(&self) -> Option<&$crate::pages::ask::ApiError> {
                self.$part.as_ref().err()
            }
        }
    };
}
pub(crate) use about;

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

/// A place on a board.
#[derive(Debug, Clone)]
pub(crate) struct PlaceRow {
    pub(crate) rank: String,
    /// The athlete's name, or number.
    pub(crate) athlete: String,
    pub(crate) link: String,
    pub(crate) time: String,
    pub(crate) behind: String,
    pub(crate) started: Moment,
    pub(crate) activity: i64,
    /// How it has moved since an earlier day.
    pub(crate) moved: Moved,
    pub(crate) is_own: bool,
}

/// Places that follow each other.
#[derive(Debug, Clone)]
pub(crate) struct Places {
    pub(crate) rows: Vec<PlaceRow>,
    /// The earlier day that is compared with, where there is one.
    pub(crate) since: Option<String>,
}

/// How a place has moved.
#[derive(Debug, Clone, Template)]
#[template(path = "moved.html")]
pub(crate) struct Moved {
    /// Also the class.
    way: Option<&'static str>,
    text: String,
}

impl Moved {
    /// Nothing is known of an earlier place.
    pub(crate) fn unknown() -> Self {
        let text = "–".to_owned();
        Self { way: None, text }
    }
}

/// How a place has moved since a day of which places are kept; there was none then if there is no change.
pub(crate) fn moved(change: Option<i64>) -> Moved {
    let (way, text) = match change {
        None => (None, "new".to_owned()),
        Some(0) => (None, "unchanged".to_owned()),
        Some(up) if up > 0 => (Some("up"), number(up)),
        Some(down) => (Some("down"), number(down.saturating_neg())),
    };
    Moved { way, text }
}

/// Places, with how far each is behind the first of them.
pub(crate) fn places(
    entries: &[EntryShape],
    (own, since): (Option<i64>, Option<String>),
    (called, link): (&Called, impl Fn(i64) -> String),
) -> Places {
    let first = entries.first().map_or(0, |entry| entry.elapsed_time);
    let row = |entry: &EntryShape| PlaceRow {
        rank: number(entry.rank),
        athlete: called.or_number(entry.athlete_id),
        link: link(entry.athlete_id),
        time: duration(entry.elapsed_time),
        behind: match entry.elapsed_time.saturating_sub(first) {
            0 => "–".to_owned(),
            behind => format!("+{}", duration(behind)),
        },
        started: Moment::utc(&entry.started_at),
        activity: entry.activity_id,
        moved: moved(entry.change),
        is_own: own == Some(entry.athlete_id),
    };
    let rows = entries.iter().map(row).collect();
    Places { rows, since }
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
