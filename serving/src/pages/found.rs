//! What somebody looks for: by its number, or by what is in its name.

use askama::Template;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use stores::names::{NAME_CHARS_MAX, Named};

use super::ask::{Answer, ApiClient, ApiError, path};
use super::parts::{About, Frame, KINDS, ProblemPage, about, rendered};
use super::query::Query;

/// As many names as a page shows.
const NAMES_MAX: usize = 20;

#[derive(Debug, Template)]
#[template(path = "found.html")]
struct FoundPage {
    frame: Frame,
    title: &'static str,
    text: String,
    page: Answer<FoundShown>,
}

about!(FoundPage, page);

#[derive(Debug)]
struct FoundShown {
    rows: Vec<Row>,
    /// Whether there may be more than are shown.
    is_cut: bool,
}

#[derive(Debug)]
struct Row {
    id: i64,
    name: String,
    link: String,
}

fn page_of(what: &str, id: i64) -> String {
    format!("/{what}s/{id}")
}

/// Leads to what a number or a single name is of; else the names that there are.
pub(crate) async fn find(client: &ApiClient, query: &Query) -> Response {
    let what = query.get("what").unwrap_or("owner");
    let text = query.get("id").map(str::trim).unwrap_or_default();
    let kind = KINDS.iter().find(|(kind, _)| *kind == what);
    let Some(((_, title), of)) = kind.zip(Named::of_name(what)) else {
        return refused(client, "Choose what to look for.");
    };
    if let Some(id) = crate::http::integer(text) {
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
    let page = found.map(|found| FoundShown {
        is_cut: found.len() >= NAMES_MAX,
        rows: found
            .into_iter()
            .map(|(id, name)| Row {
                link: page_of(what, id),
                id,
                name,
            })
            .collect(),
    });
    let heading = format!("{title}: {text}");
    FoundPage {
        frame: Frame::new(heading, "", &client.caller).looking_for(what),
        title,
        text: text.to_owned(),
        page,
    }
    .response()
}

#[derive(Debug, Template)]
#[template(path = "owners.html")]
struct OwnersPage {
    frame: Frame,
    /// What is looked for among applications.
    search: Option<String>,
    rows: Vec<OwnerRow>,
}

#[derive(Debug)]
struct OwnerRow {
    name: String,
    /// The page of its plays: only owners with numbers have some.
    plays: Option<String>,
    applications: String,
}

/// The owners of whom somebody's key reads, for who reads of some alone; what else is asked of applications goes on from there.
pub(crate) async fn own(client: &ApiClient, query: &Query) -> Response {
    let numbered = |owner: &str| crate::http::integer(owner);
    let called = client
        .names(Named::Owner, client.caller.owners().filter_map(numbered))
        .await;
    let row = |owner: &str| OwnerRow {
        name: match numbered(owner) {
            Some(id) => called.or_number(id),
            None => owner.to_owned(),
        },
        plays: numbered(owner).map(|id| page_of("owner", id)),
        applications: query.with("/applications", &[("owner", Some(owner)), ("cursor", None)]),
    };
    let page = OwnersPage {
        frame: Frame::new("What your key reads", "overview", &client.caller),
        search: query.get("search").map(str::to_owned),
        rows: client.caller.owners().map(row).collect(),
    };
    rendered(StatusCode::OK, &page)
}

fn refused(client: &ApiClient, detail: &str) -> Response {
    let error = ApiError::own(400, "This can't be looked for", detail);
    ProblemPage::response(&client.caller, error)
}
