//! What somebody looks for: by its number, or by what is in its name.

use std::fmt::Display;

use askama::Template;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use stores::names::{NAME_CHARS_MAX, Named};

use super::ask::{Answer, ApiClient, ApiError, Called, path};
use super::parts::{Frame, KINDS, ProblemPage, answered, rendered};
use super::query::Query;
use crate::http::integer;

/// As many names as a page shows.
const NAMES_MAX: usize = 20;

#[derive(Debug, Template)]
#[template(path = "found.html")]
struct FoundPage {
    frame: Frame,
    title: &'static str,
    text: String,
    what: &'static str,
    page: Answer<Vec<(i64, String)>>,
}

pub(super) fn page_of(what: &str, id: impl Display) -> String {
    format!("/{what}s/{id}")
}

/// Leads to what a number or a single name is of; else the names that there are.
pub(super) async fn find(client: ApiClient, query: Query) -> Response {
    let client = &client;
    let what = query.get("what").unwrap_or("owner");
    let text = query.get("id").map(str::trim).unwrap_or_default();
    let kind = KINDS.iter().find(|(kind, _)| *kind == what);
    let Some(((what, title), of)) = kind.zip(Named::of_name(what)) else {
        return refused(client, "Choose what to look for.");
    };
    if let Some(id) = integer(text) {
        return Redirect::to(&page_of(what, id)).into_response();
    }
    if text.is_empty() || text.chars().count() > NAME_CHARS_MAX || text.contains(char::is_control) {
        return refused(client, "Write its number, or a part of its name.");
    }
    // The API finds them itself, also for who reads of one owner alone.
    if of == Named::Application {
        let list = path("/applications", &[("search", Some(text))]);
        return Redirect::to(&list).into_response();
    }
    if !client.caller.may_read_all() {
        return refused(
            client,
            "Write its number: names are looked for among all, which your key does not read.",
        );
    }
    let found = client.find(of, text, NAMES_MAX).await;
    if let Ok(found) = &found
        && let [(id, _)] = found.as_slice()
    {
        return Redirect::to(&page_of(what, *id)).into_response();
    }
    let heading = format!("{title}: {text}");
    let page = FoundPage {
        frame: Frame::new(heading, "", &client.caller).of_kind(what),
        title,
        text: text.to_owned(),
        what,
        page: found,
    };
    answered(&page, page.page.as_ref().err())
}

#[derive(Debug, Template)]
#[template(path = "owners.html")]
struct OwnersPage {
    frame: Frame,
    query: Query,
    owners: Vec<String>,
    called: Called,
}

impl OwnersPage {
    fn name(&self, owner: &str) -> String {
        integer(owner).map_or_else(|| owner.to_owned(), |id| self.called.or_number(id))
    }

    fn applications(&self, owner: &str) -> String {
        let changes = [("owner", Some(owner)), ("cursor", None)];
        self.query.with("/applications", &changes)
    }
}

/// The owners of whom somebody's key reads, for who reads of some alone; what else is asked of applications goes on from there.
pub(crate) async fn own(client: &ApiClient, query: Query) -> Response {
    let owners = client.caller.owners();
    let page = OwnersPage {
        frame: Frame::new("What your key reads", "overview", &client.caller),
        called: client.names(Named::Owner, owners.filter_map(integer)).await,
        owners: client.caller.owners().map(str::to_owned).collect(),
        query,
    };
    rendered(StatusCode::OK, &page)
}

fn refused(client: &ApiClient, detail: &str) -> Response {
    let error = ApiError::own(400, "This can't be looked for", detail);
    ProblemPage::response(&client.caller, error)
}
