//! What a page's address says after the question mark, and the addresses of pages that differ in something.

use std::collections::BTreeMap;

use super::ask::path;

/// Parameters of a page; of those that come twice the last one counts, and empty ones are as those that are not there, since
/// forms send every field.
#[derive(Debug, Clone, Default)]
pub(crate) struct Query(BTreeMap<String, String>);

impl Query {
    pub(crate) fn of(text: Option<&str>) -> Self {
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

    /// The value of a parameter; empty where it is left out.
    pub(crate) fn text(&self, name: &str) -> &str {
        self.get(name).unwrap_or_default()
    }

    /// The address of the part of a list that begins at a cursor.
    pub(crate) fn at(&self, page: &str, cursor: &str) -> String {
        self.with(page, &[("cursor", Some(cursor))])
    }

    /// The address of a page with these parameters, some of them changed or taken away.
    pub(crate) fn with(&self, page: &str, changes: &[(&str, Option<&str>)]) -> String {
        let mut parameters = self.0.clone();
        for (name, value) in changes {
            match value {
                Some(value) => parameters.insert((*name).to_owned(), (*value).to_owned()),
                None => parameters.remove(*name),
            };
        }
        let parameters = parameters.iter();
        let parameters = parameters.map(|(name, value)| (name.as_str(), Some(value.as_str())));
        path(page, &parameters.collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_changed_in_what_is_said() {
        let query = Query::of(Some("tz=Europe%2FBerlin&kind=&country=DE&country=US"));
        assert_eq!(query.get("tz"), Some("Europe/Berlin"));
        assert_eq!(
            (query.get("kind"), query.get("country")),
            (None, Some("US"))
        );
        let link = query.with("/owners/1", &[("country", None), ("by", Some("a b"))]);
        assert_eq!(link, "/owners/1?by=a+b&tz=Europe%2FBerlin");
        assert_eq!(Query::of(None).with("/", &[("a", None)]), "/");
    }
}
