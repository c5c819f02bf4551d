//! Style, script and icon of the pages, embedded in the binary. Their paths contain a hash of the
//! content, so browsers can cache them forever.

use std::sync::LazyLock;

use axum::extract::Path;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use xxhash_rust::xxh3::xxh3_64;

const STYLE: &str = include_str!("../../assets/style.css");
const SCRIPT: &str = include_str!("../../assets/live.js");
const ICON: &str = include_str!("../../assets/icon.svg");

/// Paths of the assets.
#[derive(Debug)]
pub(crate) struct Assets {
    pub(crate) style: String,
    pub(crate) script: String,
    pub(crate) icon: String,
}

/// Paths of the assets of this build.
pub(crate) static ASSETS: LazyLock<Assets> = LazyLock::new(|| Assets {
    style: hashed_path("style", STYLE, "css"),
    script: hashed_path("live", SCRIPT, "js"),
    icon: hashed_path("icon", ICON, "svg"),
});

fn hashed_path(name: &str, content: &str, extension: &str) -> String {
    format!(
        "/assets/{name}-{:016x}.{extension}",
        xxh3_64(content.as_bytes())
    )
}

/// Serves an asset.
pub(crate) async fn asset(Path(name): Path<String>) -> Response {
    let path = format!("/assets/{name}");
    let (content_type, content) = if path == ASSETS.style {
        ("text/css; charset=utf-8", STYLE)
    } else if path == ASSETS.script {
        ("text/javascript; charset=utf-8", SCRIPT)
    } else if path == ASSETS.icon {
        ("image/svg+xml", ICON)
    } else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let headers = [
        (header::CONTENT_TYPE, content_type),
        (header::CACHE_CONTROL, "public, max-age=31536000, immutable"),
    ];
    (headers, content).into_response()
}
