//! Query parameters of a page, and links to pages with changed parameters.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt::Display;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;

/// Query parameters of a page. The last of duplicate parameters counts, and empty ones count as
/// missing, since forms send every field.
#[derive(Debug, Clone, Default)]
pub(crate) struct Query(BTreeMap<String, String>);

impl Query {
    pub(crate) fn parse(text: Option<&str>) -> Self {
        let pairs = form_urlencoded::parse(text.unwrap_or_default().as_bytes());
        let pairs = pairs.filter(|(_, value)| !value.trim().is_empty());
        Self(
            pairs
                .map(|(name, value)| (name.into_owned(), value.trim().to_owned()))
                .collect(),
        )
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// The value of a parameter; empty if missing.
    pub(crate) fn get_or_empty(&self, name: &str) -> &str {
        self.get(name).unwrap_or_default()
    }

    /// URL of the next page of a list.
    pub(crate) fn next_page_url(&self, page: &str, cursor: &str) -> String {
        self.link_with(page, &[("cursor", Some(cursor))])
    }

    /// URL of a page with these parameters, some of them changed or removed.
    pub(crate) fn link_with(&self, page: &str, changes: &[(&str, Option<&str>)]) -> String {
        let mut parameters = self.0.clone();
        for (name, value) in changes {
            match value {
                Some(value) => parameters.insert((*name).to_owned(), (*value).to_owned()),
                None => parameters.remove(*name),
            };
        }
        let parameters = parameters.iter();
        let parameters = parameters.map(|(name, value)| (name.as_str(), Some(value.as_str())));
        path_with_query(page, &parameters.collect::<Vec<_>>())
    }
}

impl<S: Sync> FromRequestParts<S> for Query {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self::parse(parts.uri.query()))
    }
}

/// Path of the page of an entity.
pub(crate) fn entity_path(kind: &str, id: impl Display) -> String {
    format!("/{kind}s/{id}")
}

/// A path with the query parameters that have a value.
pub(crate) fn path_with_query(base: &str, parameters: &[(&str, Option<&str>)]) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    for (name, value) in parameters {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            query.append_pair(name, value);
        }
    }
    let query = query.finish();
    match query.is_empty() {
        true => base.to_owned(),
        false => format!("{base}?{query}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_contain_changed_parameters() {
        let query = Query::parse(Some("tz=Europe%2FBerlin&kind=&country=DE&country=US"));
        assert_eq!(query.get("tz"), Some("Europe/Berlin"));
        assert_eq!(
            (query.get("kind"), query.get("country")),
            (None, Some("US"))
        );
        let link = query.link_with("/owners/1", &[("country", None), ("by", Some("a b"))]);
        assert_eq!(link, "/owners/1?by=a+b&tz=Europe%2FBerlin");
        assert_eq!(Query::parse(None).link_with("/", &[("a", None)]), "/");
    }
}
