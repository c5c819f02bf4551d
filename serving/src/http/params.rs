//! The parameters of a request: each at most once, and none that is not known.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::{FromRequestParts, Query};
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, Uri, header};
use axum::response::{IntoResponse, Response};
use schemas::key::{KeyKind, KeyValue};
use schemas::source::{Source, UnknownSource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use utoipa::IntoParams;

use super::problem::Problem;
use crate::metric::Metric;

/// Rows of a page unless it is said.
pub(crate) const LIMIT_DEFAULT: usize = 50;
/// Rows of a page, at most.
pub(crate) const LIMIT_MAX: usize = 1_000;

/// The parameters of a path, as axum reads them; what can't be read is a problem that says which.
#[derive(Debug)]
pub(crate) struct Path<T>(pub(crate) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Path<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        match axum::extract::Path::from_request_parts(parts, state).await {
            Ok(axum::extract::Path(path)) => Ok(Self(path)),
            Err(error) => Err(Problem::parameter(format!(
                "the path can't be read: {}; write percent-encoded UTF-8",
                error.body_text()
            ))),
        }
    }
}

/// The parameters of a request, by name.
#[derive(Debug)]
pub(crate) struct Params(BTreeMap<String, String>);

/// A parameter that decides which others are known; the first one of this name, if there is any.
pub(crate) fn one(uri: &Uri, name: &str) -> Option<String> {
    all_of(uri, name).into_iter().next()
}

/// Each value that a parameter is given, as [`Params::read`] decodes it.
pub(crate) fn all_of(uri: &Uri, name: &str) -> Vec<String> {
    let pairs = Query::<Vec<(String, String)>>::try_from_uri(uri);
    let pairs = pairs.map_or_else(|_| Vec::new(), |Query(pairs)| pairs);
    let of = pairs.into_iter().filter(|(of, _)| of == name);
    of.map(|(_, value)| value).collect()
}

/// How an answer is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Json,
    Csv,
}

impl Format {
    /// What is answered in this form.
    pub(crate) fn answer<T: Serialize>(
        self,
        of: T,
        as_csv: impl FnOnce(T) -> Response,
    ) -> Response {
        match self {
            Self::Json => Json(of).into_response(),
            Self::Csv => as_csv(of),
        }
    }
}

/// Which page of a list is asked for, and in which format.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct PageQuery {
    /// Rows of a page, at most 1,000; 50 if left out
    #[param(value_type = Option<usize>)]
    pub(crate) limit: usize,
    /// cursor of the page before
    pub(crate) cursor: Option<String>,
    /// json or csv; the header Link leads to the next page
    #[param(value_type = Option<String>)]
    pub(crate) format: Format,
}

impl PageQuery {
    /// Reads the parameters of a list that takes those `own` besides.
    pub(crate) fn read(uri: &Uri, own: &[&str]) -> Result<(Params, Self), Problem> {
        Self::read_within(uri, own, LIMIT_DEFAULT, LIMIT_MAX)
    }

    /// As [`Self::read`], for a list whose pages have other limits.
    pub(crate) fn read_within(
        uri: &Uri,
        own: &[&str],
        limit_default: usize,
        limit_max: usize,
    ) -> Result<(Params, Self), Problem> {
        let params = Params::read(uri, &[own, &["limit", "cursor", "format"]].concat())?;
        let page = Self::of(&params, limit_default, limit_max)?;
        Ok((params, page))
    }

    /// What parameters say that were read with others.
    pub(crate) fn of(params: &Params, default: usize, max: usize) -> Result<Self, Problem> {
        Ok(Self {
            limit: params.limit_within(default, max)?,
            cursor: params.get("cursor").map(str::to_owned),
            format: params.format()?,
        })
    }

    /// Where the page begins, by one of the readers of [`cursor`]; `None` for the first page.
    pub(crate) fn start<T>(
        &self,
        fingerprint: u64,
        read: impl FnOnce(u64, &str) -> Result<T, Problem>,
    ) -> Result<Option<T>, Problem> {
        let cursor = self.cursor.as_deref();
        cursor.map(|cursor| read(fingerprint, cursor)).transpose()
    }

    /// The page as a response, with the link to the page that begins at `next`.
    pub(crate) fn answer<T: Serialize>(
        &self,
        uri: &Uri,
        next: Option<&str>,
        page: T,
        as_csv: impl FnOnce(T) -> Response,
    ) -> Response {
        let link = next.and_then(|next| link_to_next(uri, next, None));
        let answer = self.format.answer(page, as_csv);
        (link.map(|link| [link]), answer).into_response()
    }
}

/// The header that leads to the next page of a list (RFC 8288). Where the page begins is said by the
/// cursor alone; `besides` is a parameter that the request left open.
pub(crate) fn link_to_next(
    uri: &Uri,
    cursor: &str,
    besides: Option<&str>,
) -> Option<(HeaderName, HeaderValue)> {
    let pairs = uri.query().unwrap_or_default().split('&');
    let is_begin = |pair: &str| pair.starts_with("cursor=") || pair.starts_with("offset=");
    let kept = pairs.filter(|pair| !pair.is_empty() && !is_begin(pair));
    let mut query: Vec<&str> = kept.chain(besides).collect();
    let cursor = format!("cursor={cursor}");
    query.push(&cursor);
    let link = format!("<{}?{}>; rel=\"next\"", uri.path(), query.join("&"));
    Some((header::LINK, HeaderValue::try_from(link).ok()?))
}

impl Params {
    /// Reads the parameters of a request that knows those `known`.
    pub(crate) fn read(uri: &Uri, known: &[&str]) -> Result<Self, Problem> {
        let raw = uri.query().unwrap_or_default();
        let Query(pairs) = Query::<Vec<(String, String)>>::try_from_uri(uri).map_err(|error| {
            Problem::parameter(format!("the parameters can't be read: {error}"))
        })?;
        let mut params = BTreeMap::new();
        for (name, value) in pairs {
            if !known.contains(&name.as_str()) {
                let known = known.join(", ");
                return Err(Problem::parameter(if known.is_empty() {
                    format!("there is no parameter {name:?}: this request takes none")
                } else {
                    format!("there is no parameter {name:?}: this request takes {known}")
                }));
            }
            // What is no UTF-8 decodes to a replacement character.
            if value.contains('\u{fffd}') && !raw.to_ascii_uppercase().contains("%EF%BF%BD") {
                return Err(Problem::parameter(format!(
                    "{name} is not UTF-8: write percent-encoded UTF-8"
                )));
            }
            if params.contains_key(&name) {
                return Err(Problem::parameter(format!(
                    "{name} is given twice: give it once"
                )));
            }
            params.insert(name, value);
        }
        Ok(Self(params))
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// The filters, each with the value that its column takes.
    pub(crate) fn filters(&self, metric: &Metric) -> Result<BTreeMap<String, KeyValue>, Problem> {
        metric
            .columns()
            .iter()
            .filter_map(|(name, kind)| Some((name, *kind, self.get(name)?)))
            .map(|(name, kind, text)| Ok((name.clone(), filter_value(name, kind, text)?)))
            .collect()
    }

    pub(crate) fn limit(&self) -> Result<usize, Problem> {
        self.limit_within(LIMIT_DEFAULT, LIMIT_MAX)
    }

    /// How many rows a page may have at most, which may not be more than `max`.
    pub(crate) fn limit_within(&self, default: usize, max: usize) -> Result<usize, Problem> {
        let limit = self.parsed("limit", |_, text| {
            let limit = integer(text).and_then(|limit| usize::try_from(limit).ok());
            limit
                .filter(|limit| (1..=max).contains(limit))
                .ok_or_else(|| {
                    Problem::parameter(format!("limit={text:?} is not a number from 1 to {max}"))
                })
        });
        Ok(limit?.unwrap_or(default))
    }

    pub(crate) fn format(&self) -> Result<Format, Problem> {
        let formats = [("json", Format::Json), ("csv", Format::Csv)];
        Ok(self.choice("format", &formats)?.unwrap_or(Format::Json))
    }

    /// The value of a parameter that takes some names; `None` if it is left out.
    pub(crate) fn choice<T: Copy>(
        &self,
        name: &str,
        choices: &[(&str, T)],
    ) -> Result<Option<T>, Problem> {
        let Some(text) = self.get(name) else {
            return Ok(None);
        };
        if let Some((_, value)) = choices.iter().find(|(choice, _)| *choice == text) {
            return Ok(Some(*value));
        }
        let names: Vec<&str> = choices.iter().map(|(choice, _)| *choice).collect();
        let names = match names.as_slice() {
            [others @ .., last] if !others.is_empty() => format!("{} or {last}", others.join(", ")),
            names => names.join(", "),
        };
        let detail = format!("{name}={text:?} is unknown: write {names}");
        Err(Problem::parameter(detail))
    }

    /// A parameter that is true or false; false if it is left out.
    pub(crate) fn flag(&self, name: &str) -> Result<bool, Problem> {
        let choices = [("true", true), ("false", false)];
        Ok(self.choice(name, &choices)?.unwrap_or(false))
    }

    /// The value of a parameter that `read` parses, which is also given the parameter's name.
    pub(crate) fn parsed<T>(
        &self,
        name: &str,
        read: impl FnOnce(&str, &str) -> Result<T, Problem>,
    ) -> Result<Option<T>, Problem> {
        self.get(name).map(|text| read(name, text)).transpose()
    }

    /// The source of the parameter `source`.
    pub(crate) fn source(&self) -> Result<Option<Source>, Problem> {
        self.parsed("source", |_, text| {
            let source = text.parse();
            source.map_err(|error: UnknownSource| Problem::parameter(error.to_string()))
        })
    }

    /// What is asked, whatever the page and the form: the same for two requests that a cursor may
    /// go between.
    pub(crate) fn question(&self) -> String {
        let mut text = String::new();
        for (name, value) in &self.0 {
            if !matches!(name.as_str(), "limit" | "offset" | "cursor" | "format") {
                text.push_str(&format!("{name}={value:?}&"));
            }
        }
        text
    }
}

/// An integer of digits with or without a minus: no plus, no blank.
pub(crate) fn integer(text: &str) -> Option<i64> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let all_digits = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    all_digits.then(|| text.parse().ok()).flatten()
}

fn filter_value(name: &str, kind: KeyKind, text: &str) -> Result<KeyValue, Problem> {
    let expected = match (name, kind) {
        (_, KeyKind::Int) => match integer(text) {
            Some(value) => return Ok(KeyValue::Int(value)),
            None => "a 64-bit integer such as 42",
        },
        ("country", _) => {
            if text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_uppercase()) {
                return Ok(KeyValue::Text(text.to_owned()));
            }
            "an ISO 3166 alpha-2 code such as DE"
        }
        ("kind", _) => {
            if matches!(text, "play" | "download") {
                return Ok(KeyValue::Text(text.to_owned()));
            }
            "play or download; leave it out for both"
        }
        (_, KeyKind::Text) => return Ok(KeyValue::Text(text.to_owned())),
        (_, KeyKind::Time | KeyKind::Instant) => "something that can be filtered by",
    };
    Err(Problem::parameter(format!(
        "{name}={text:?} is not {expected}"
    )))
}

/// A number that something stored can have: stores have room for those below 2^63, and also look at the one that follows.
pub(crate) fn stored_number(text: &str) -> Option<u64> {
    let number = text.parse::<u64>().ok();
    number.filter(|number| *number < i64::MAX.cast_unsigned())
}

#[cfg(test)]
#[path = "params_tests.rs"]
mod tests;
