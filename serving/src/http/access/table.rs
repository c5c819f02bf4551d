//! What each route needs. A route that is not here is served to nobody.

use axum::http::Method;

/// What a key must permit for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// Nothing, however often: it costs nothing, and whether the process lives is told whatever else happens.
    Free,
    /// Nothing: it is for who has no key, too, and a key is not looked at.
    Nothing,
    /// Nothing; who is known is told more.
    Open,
    /// To read all, or what one owner has, whom this parameter names.
    Owner(&'static str),
    /// To read all, or what one owner has, whose the application in the path is.
    Application,
    /// To ask for something for an application: by its owner, whom the key has to name, or by administrators.
    Asking,
    /// To read all.
    Read,
    /// To write events or rows of the source in the path.
    Ingest,
    /// To write authorizations: connecting athletes, and disconnecting them.
    Connect,
    /// To administer.
    Admin,
    /// To read something: what a page shows it asks for as who looks at it.
    Page,
    /// As a page needs; who may not is told so, and led nowhere.
    Following,
}

use Need::{
    Admin, Application, Asking, Connect, Following, Free, Ingest, Nothing, Open, Owner, Page, Read,
};

const GET: Method = Method::GET;
const POST: Method = Method::POST;
const PATCH: Method = Method::PATCH;
const DELETE: Method = Method::DELETE;
const OWNER_ID: Need = Owner("owner_id");

/// By path and method. HEAD is as GET.
const TABLE: &[(&str, &[(Method, Need)])] = &[
    ("/", &[(GET, Page)]),
    ("/find", &[(GET, Page)]),
    ("/owners/{owner_id}", &[(GET, Page)]),
    ("/tracks/{track_id}", &[(GET, Page)]),
    ("/segments/{segment_id}", &[(GET, Page)]),
    ("/athletes/{athlete_id}", &[(GET, Page)]),
    ("/applications", &[(GET, Page)]),
    ("/applications/{id}", &[(GET, Page)]),
    ("/pipeline", &[(GET, Page)]),
    ("/pipeline/runs/{source}/{epoch}", &[(GET, Page)]),
    ("/pipeline/dead-letters", &[(GET, Page), (POST, Page)]),
    ("/pipeline/reconciliations", &[(GET, Page), (POST, Page)]),
    ("/live", &[(GET, Following)]),
    ("/signin", &[(GET, Nothing), (POST, Nothing)]),
    ("/signout", &[(POST, Nothing)]),
    ("/assets/{name}", &[(GET, Free)]),
    ("/docs", &[(GET, Nothing)]),
    ("/docs/{name}", &[(GET, Nothing)]),
    ("/livez", &[(GET, Free)]),
    ("/readyz", &[(GET, Open)]),
    ("/metrics", &[(GET, Read)]),
    ("/openapi.json", &[(GET, Nothing)]),
    ("/api/v1/overview", &[(GET, Read)]),
    ("/api/v1/explain", &[(GET, OWNER_ID)]),
    ("/api/v1/stats/{metric}/total", &[(GET, OWNER_ID)]),
    ("/api/v1/stats/{metric}/series", &[(GET, OWNER_ID)]),
    ("/api/v1/stats/{metric}/breakdown", &[(GET, OWNER_ID)]),
    ("/api/v1/stats/{metric}/uniques", &[(GET, OWNER_ID)]),
    ("/api/v1/stats/{metric}/uniques/series", &[(GET, OWNER_ID)]),
    ("/api/v1/boards/{name}/ranks", &[(POST, Read)]),
    ("/api/v1/boards/{name}/{key}", &[(GET, Read)]),
    (
        "/api/v1/boards/{name}/{key}/athletes/{athlete_id}",
        &[(GET, Read)],
    ),
    ("/api/v1/segments/{segment_id}/counts", &[(GET, Read)]),
    ("/api/v1/athletes/{athlete_id}/achievements", &[(GET, Read)]),
    ("/api/v1/activities/{id}/achievements", &[(GET, Read)]),
    ("/api/v1/applications", &[(GET, Owner("owner"))]),
    (
        "/api/v1/applications/{id}",
        &[(GET, Application), (PATCH, Admin)],
    ),
    ("/api/v1/applications/{id}/audit", &[(GET, Application)]),
    ("/api/v1/applications/{id}/history", &[(GET, Application)]),
    // An app sends people there whom it can't connect.
    ("/api/v1/applications/{id}/limit", &[(GET, Nothing)]),
    (
        "/api/v1/applications/{id}/capacity-notices",
        &[(GET, Application)],
    ),
    (
        "/api/v1/applications/{id}/capacity-requests",
        &[(GET, Application), (POST, Asking)],
    ),
    (
        "/api/v1/applications/{id}/authorizations",
        &[(POST, Connect)],
    ),
    (
        "/api/v1/applications/{id}/authorizations/{athlete_id}",
        &[(DELETE, Connect)],
    ),
    ("/api/v1/capacity-notices", &[(GET, Read)]),
    ("/api/v1/capacity-requests", &[(GET, Read)]),
    ("/api/v1/capacity-requests/{id}", &[(PATCH, Admin)]),
    ("/api/v1/ingest/{source}", &[(POST, Ingest)]),
    ("/api/v1/batch/runs", &[(GET, Read)]),
    ("/api/v1/batch/runs/{epoch}", &[(GET, Read)]),
    ("/api/v1/reconciliations", &[(GET, Read)]),
    ("/api/v1/reconciliations/approve", &[(POST, Admin)]),
    // They hold what somebody sent, as it came.
    ("/api/v1/dead-letters", &[(GET, Read)]),
    ("/api/v1/dead-letters/replay", &[(POST, Admin)]),
    ("/api/v1/dead-letters/counts", &[(GET, Read)]),
    ("/api/v1/dead-letters/{id}", &[(GET, Read)]),
    ("/api/v1/dead-letters/{id}/{place}", &[(GET, Read)]),
];

/// What is known of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Known {
    /// What it needs.
    Needs(Need),
    /// The path is served, by other methods: these.
    OtherMethods(&'static [(Method, Need)]),
    /// It was forgotten in the table.
    Forgotten,
}

/// What a route needs.
pub(crate) fn needs(method: &Method, path: &str) -> Known {
    let method = match *method {
        Method::HEAD => Method::GET,
        _ => method.clone(),
    };
    let Some((_, methods)) = TABLE.iter().find(|(of, _)| *of == path) else {
        return Known::Forgotten;
    };
    let found = methods.iter().find(|(of, _)| *of == method);
    found.map_or(Known::OtherMethods(methods), |(_, need)| {
        Known::Needs(*need)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_path_stands_there_once() {
        let paths: BTreeSet<&str> = TABLE.iter().map(|(path, _)| *path).collect();
        assert_eq!(paths.len(), TABLE.len());
    }

    #[test]
    fn what_is_not_there_is_forgotten() {
        assert_eq!(needs(&Method::HEAD, "/livez"), Known::Needs(Free));
        let other = needs(&Method::POST, "/livez");
        assert!(matches!(other, Known::OtherMethods(_)), "{other:?}");
        assert_eq!(needs(&Method::GET, "/api/v1/new"), Known::Forgotten);
        let change = needs(&Method::PATCH, "/api/v1/applications/{id}");
        assert_eq!(change, Known::Needs(Admin));
    }
}
