//! Request parameters. Unknown and repeated parameters are errors.

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

/// Default number of rows of a page.
pub(crate) const LIMIT_DEFAULT: usize = 50;
/// Maximum number of rows of a page.
pub(crate) const LIMIT_MAX: usize = 1_000;

/// The parameters of a path. Unlike axum's extractor, it rejects with a [`Problem`].
#[derive(Debug)]
pub(crate) struct Path<T>(pub(crate) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Path<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        match axum::extract::Path::from_request_parts(parts, state).await {
            Ok(axum::extract::Path(path)) => Ok(Self(path)),
            Err(error) => Err(Problem::parameter(format!(
                "the path is invalid: {}; write percent-encoded UTF-8",
                error.body_text()
            ))),
        }
    }
}

/// The parameters of a request, by name.
#[derive(Debug)]
pub(crate) struct Params(BTreeMap<String, String>);

/// Returns a parameter that decides which other parameters are known. If it is repeated, the first
/// value counts.
pub(crate) fn find_first_value(uri: &Uri, name: &str) -> Option<String> {
    find_all_values(uri, name).into_iter().next()
}

/// Returns all values of a parameter, decoded as by [`Params::parse`].
pub(crate) fn find_all_values(uri: &Uri, name: &str) -> Vec<String> {
    let pairs = Query::<Vec<(String, String)>>::try_from_uri(uri);
    let pairs = pairs.map_or_else(|_| Vec::new(), |Query(pairs)| pairs);
    let matching = pairs.into_iter().filter(|(key, _)| key == name);
    matching.map(|(_, value)| value).collect()
}

/// The format of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Json,
    Csv,
}

impl Format {
    /// Writes a response in this format.
    pub(crate) fn respond<T: Serialize>(
        self,
        content: T,
        write_csv: impl FnOnce(T) -> Response,
    ) -> Response {
        match self {
            Self::Json => Json(content).into_response(),
            Self::Csv => write_csv(content),
        }
    }
}

/// The requested page of a list, and its format.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct PageQuery {
    /// Rows per page, at most 1,000; default 50
    #[param(value_type = Option<usize>)]
    pub(crate) limit: usize,
    /// The field `cursor` of the previous page
    pub(crate) cursor: Option<String>,
    /// json (default) or csv; the Link header has the URL of the next page
    #[param(value_type = Option<String>)]
    pub(crate) format: Format,
}

impl PageQuery {
    /// Parses the parameters of a list that also accepts the parameters in `other_params`.
    pub(crate) fn parse(uri: &Uri, other_params: &[&str]) -> Result<(Params, Self), Problem> {
        Self::parse_within(uri, other_params, LIMIT_DEFAULT, LIMIT_MAX)
    }

    /// As [`Self::parse`], for a list whose pages have other limits.
    pub(crate) fn parse_within(
        uri: &Uri,
        other_params: &[&str],
        limit_default: usize,
        limit_max: usize,
    ) -> Result<(Params, Self), Problem> {
        let params = Params::parse(
            uri,
            &[other_params, &["limit", "cursor", "format"]].concat(),
        )?;
        let page = Self::from_params(&params, limit_default, limit_max)?;
        Ok((params, page))
    }

    /// Builds the page from parsed parameters.
    pub(crate) fn from_params(
        params: &Params,
        default: usize,
        max: usize,
    ) -> Result<Self, Problem> {
        Ok(Self {
            limit: params.parse_limit_within(default, max)?,
            cursor: params.get("cursor").map(str::to_owned),
            format: params.parse_format()?,
        })
    }

    /// Decodes the start of the page with a function of [`super::cursor`]. Returns `None` for the
    /// first page.
    pub(crate) fn decode_start<T>(
        &self,
        fingerprint: u64,
        decode: impl FnOnce(u64, &str) -> Result<T, Problem>,
    ) -> Result<Option<T>, Problem> {
        let cursor = self.cursor.as_deref();
        let start = cursor.map(|cursor| decode(fingerprint, cursor)).transpose();
        start.map_err(|problem| problem.with_parameter("cursor"))
    }

    /// Writes the page as a response, with the link to the page that begins at `next_cursor`.
    pub(crate) fn respond<T: Serialize>(
        &self,
        uri: &Uri,
        next_cursor: Option<&str>,
        page: T,
        write_csv: impl FnOnce(T) -> Response,
    ) -> Response {
        let link = next_cursor.and_then(|next_cursor| build_next_link(uri, next_cursor, None));
        let response = self.format.respond(page, write_csv);
        (link.map(|link| [link]), response).into_response()
    }
}

/// Builds the Link header to the next page of a list (RFC 8288). The cursor alone decides where
/// that page begins. `extra` is a parameter that the request omitted.
pub(crate) fn build_next_link(
    uri: &Uri,
    cursor: &str,
    extra: Option<&str>,
) -> Option<(HeaderName, HeaderValue)> {
    let pairs = uri.query().unwrap_or_default().split('&');
    let is_page_start = |pair: &str| pair.starts_with("cursor=") || pair.starts_with("offset=");
    let other_pairs = pairs.filter(|pair| !pair.is_empty() && !is_page_start(pair));
    let mut query: Vec<&str> = other_pairs.chain(extra).collect();
    let cursor = format!("cursor={cursor}");
    query.push(&cursor);
    let link = format!("<{}?{}>; rel=\"next\"", uri.path(), query.join("&"));
    Some((header::LINK, HeaderValue::try_from(link).ok()?))
}

impl Params {
    /// Parses the parameters of a request. Fails if `known_names` lacks the name of a parameter.
    pub(crate) fn parse(uri: &Uri, known_names: &[&str]) -> Result<Self, Problem> {
        let raw = uri.query().unwrap_or_default();
        let Query(pairs) = Query::<Vec<(String, String)>>::try_from_uri(uri)
            .map_err(|error| Problem::parameter(format!("the query string is invalid: {error}")))?;
        let mut params = BTreeMap::new();
        for (name, value) in pairs {
            if !known_names.contains(&name.as_str()) {
                let known = known_names.join(", ");
                return Err(Problem::parameter(if known.is_empty() {
                    format!("unknown parameter {name:?}: this request takes none")
                } else {
                    format!("unknown parameter {name:?}: this request takes {known}")
                })
                .with_parameter(&name));
            }
            // Invalid UTF-8 decodes to a replacement character.
            if value.contains('\u{fffd}') && !raw.to_ascii_uppercase().contains("%EF%BF%BD") {
                return Err(Problem::parameter(format!(
                    "{name} is not UTF-8: write percent-encoded UTF-8"
                ))
                .with_parameter(&name));
            }
            if params.contains_key(&name) {
                return Err(
                    Problem::parameter(format!("{name} is repeated: send it once"))
                        .with_parameter(&name),
                );
            }
            params.insert(name, value);
        }
        Ok(Self(params))
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Parses the filters, each as a value of its column's type.
    pub(crate) fn parse_filters(
        &self,
        metric: &Metric,
    ) -> Result<BTreeMap<String, KeyValue>, Problem> {
        metric
            .columns()
            .iter()
            .filter_map(|(name, kind)| Some((name, *kind, self.get(name)?)))
            .map(|(name, kind, text)| Ok((name.clone(), parse_filter_value(name, kind, text)?)))
            .collect()
    }

    pub(crate) fn parse_limit(&self) -> Result<usize, Problem> {
        self.parse_limit_within(LIMIT_DEFAULT, LIMIT_MAX)
    }

    /// Parses the number of rows of a page, which must be from 1 to `max`.
    pub(crate) fn parse_limit_within(&self, default: usize, max: usize) -> Result<usize, Problem> {
        let limit = self.parse_with("limit", |_, text| {
            let limit = parse_integer(text).and_then(|limit| usize::try_from(limit).ok());
            limit
                .filter(|limit| (1..=max).contains(limit))
                .ok_or_else(|| {
                    Problem::parameter(format!("limit={text:?} is not a number from 1 to {max}"))
                })
        });
        Ok(limit?.unwrap_or(default))
    }

    pub(crate) fn parse_format(&self) -> Result<Format, Problem> {
        let formats = [("json", Format::Json), ("csv", Format::Csv)];
        Ok(self
            .parse_choice("format", &formats)?
            .unwrap_or(Format::Json))
    }

    /// Parses a parameter with a fixed set of values. Returns `None` if it is absent.
    pub(crate) fn parse_choice<T: Copy>(
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
        let detail = format!("{name}={text:?} is invalid: use {names}");
        Err(Problem::parameter(detail).with_parameter(name))
    }

    /// Parses a parameter that is true or false. Returns false if it is absent.
    pub(crate) fn parse_flag(&self, name: &str) -> Result<bool, Problem> {
        let choices = [("true", true), ("false", false)];
        Ok(self.parse_choice(name, &choices)?.unwrap_or(false))
    }

    /// Parses a parameter with a parser that takes the name and the text. Returns `None` if it is
    /// absent.
    pub(crate) fn parse_with<T>(
        &self,
        name: &str,
        parse: impl FnOnce(&str, &str) -> Result<T, Problem>,
    ) -> Result<Option<T>, Problem> {
        let value = self.get(name).map(|text| parse(name, text)).transpose();
        value.map_err(|problem| problem.with_parameter(name))
    }

    /// Parses the parameter `source`.
    pub(crate) fn parse_source(&self) -> Result<Option<Source>, Problem> {
        self.parse_with("source", |_, text| {
            let source = text.parse();
            source.map_err(|error: UnknownSource| Problem::parameter(error.to_string()))
        })
    }

    /// Formats the parameters that select a list, without page and format. A cursor is valid only
    /// for requests with equal text.
    pub(crate) fn canonical_query(&self) -> String {
        let mut text = String::new();
        for (name, value) in &self.0 {
            if !matches!(name.as_str(), "limit" | "offset" | "cursor" | "format") {
                text.push_str(&format!("{name}={value:?}&"));
            }
        }
        text
    }
}

/// Parses an integer: digits with an optional minus, without plus or blanks.
pub(crate) fn parse_integer(text: &str) -> Option<i64> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let has_only_digits = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    has_only_digits.then(|| text.parse().ok()).flatten()
}

fn parse_filter_value(name: &str, kind: KeyKind, text: &str) -> Result<KeyValue, Problem> {
    let expected = match (name, kind) {
        (_, KeyKind::Int) => match parse_integer(text) {
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
        (_, KeyKind::Time | KeyKind::Instant) => "a column that supports filters",
    };
    Err(Problem::parameter(format!("{name}={text:?} is not {expected}")).with_parameter(name))
}

/// Parses the number of a stored object. Stores hold numbers below 2^63, and queries also use
/// `number + 1`.
pub(crate) fn parse_stored_number(text: &str) -> Option<u64> {
    let number = text.parse::<u64>().ok();
    number.filter(|number| *number < i64::MAX.cast_unsigned())
}

#[cfg(test)]
#[path = "params_tests.rs"]
mod tests;
