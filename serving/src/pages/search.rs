//! Search by number or by a part of the name.

use askama::Template;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use stores::names::{NAME_CHARS_MAX, NamedKind};

use super::api_error::{ApiError, ApiResult};
use super::client::{ApiClient, EntityNames};
use super::components::{KINDS, PageContext, ProblemPage, render, render_page};
use super::query::{Query, entity_path, path_with_query};
use crate::http::parse_integer;

/// Maximum names on a page.
const NAMES_MAX: usize = 20;

#[derive(Debug, Template)]
#[template(path = "search.html")]
struct SearchPage {
    context: PageContext,
    title: &'static str,
    text: String,
    kind: &'static str,
    page: ApiResult<Vec<(i64, String)>>,
}

/// Redirects to the page of a number or of the only match; otherwise lists the matches.
pub(super) async fn find(client: ApiClient, query: Query) -> Response {
    let client = &client;
    let kind_name = query.get("what").unwrap_or("owner");
    let text = query.get("id").map(str::trim).unwrap_or_default();
    let kind = KINDS.iter().find(|(kind, _)| *kind == kind_name);
    let Some(((kind, title), named_kind)) = kind.zip(NamedKind::from_name(kind_name)) else {
        return invalid_search(client, "Choose what to search for.");
    };
    if let Some(id) = parse_integer(text) {
        return Redirect::to(&entity_path(kind, id)).into_response();
    }
    if text.is_empty() || text.chars().count() > NAME_CHARS_MAX || text.contains(char::is_control) {
        return invalid_search(client, "Enter its number or a part of its name.");
    }
    // The API searches applications itself, also for a key that reads a single owner.
    if named_kind == NamedKind::Application {
        let list = path_with_query("/applications", &[("search", Some(text))]);
        return Redirect::to(&list).into_response();
    }
    if !client.caller.may_read_all() {
        return invalid_search(
            client,
            "Enter its number: a search by name covers all owners, which your key may not read.",
        );
    }
    let matches = client.find_names(named_kind, text, NAMES_MAX).await;
    if let Ok(named) = &matches
        && let [(id, _)] = named.as_slice()
    {
        return Redirect::to(&entity_path(kind, *id)).into_response();
    }
    let heading = format!("{title}: {text}");
    let page = SearchPage {
        context: PageContext::new(heading, "", &client.caller).with_kind(kind),
        title,
        text: text.to_owned(),
        kind,
        page: matches,
    };
    render_page(&page, page.page.as_ref().err())
}

#[derive(Debug, Template)]
#[template(path = "owners.html")]
struct OwnersPage {
    context: PageContext,
    query: Query,
    owners: Vec<String>,
    names: EntityNames,
}

impl OwnersPage {
    fn name(&self, owner: &str) -> String {
        parse_integer(owner).map_or_else(|| owner.to_owned(), |id| self.names.or_number(id))
    }

    fn applications_url(&self, owner: &str) -> String {
        let changes = [("owner", Some(owner)), ("cursor", None)];
        self.query.link_with("/applications", &changes)
    }
}

/// Lists the owners that the key may read, with links to their applications.
pub(crate) async fn list_permitted_owners(client: &ApiClient, query: Query) -> Response {
    let owners = client.caller.owners();
    let page = OwnersPage {
        context: PageContext::new("Your owners", "overview", &client.caller),
        names: client
            .fetch_names(NamedKind::Owner, owners.filter_map(parse_integer))
            .await,
        owners: client.caller.owners().map(str::to_owned).collect(),
        query,
    };
    render(StatusCode::OK, &page)
}

fn invalid_search(client: &ApiClient, detail: &str) -> Response {
    let error = ApiError::new(400, "Invalid search", detail);
    ProblemPage::render_error(&client.caller, error)
}
