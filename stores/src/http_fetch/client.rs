//! Fetches a URL into a file, with limits on size and time, and only in known formats.
//!
//! Errors show only host and path of the URL, because the query and the token may be secret.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use reqwest::{Response, StatusCode, Url, header, redirect};

use super::{FetchRequest, ResponseFormat};
use crate::retry::format_error_chain;
use crate::{Error, Result, Secret, tls};

/// The timeout of a connection attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The accepted content types.
const CONTENT_TYPES: &str = "text/csv, application/x-ndjson, application/json";

/// Writes the response to a new file, and returns its format.
///
/// # Errors
/// [`Error::Refused`] for an invalid URL, an unexpected response (another status than 200, a
/// redirect, another type), and one that exceeds the limits; [`Error::Unavailable`] if the server
/// does not answer or returns a transient error; [`Error::Broken`] if the file can't be written.
pub async fn fetch(request: &FetchRequest<'_>, path: &Path) -> Result<ResponseFormat> {
    let (url, location) = parse_url(request.url)?;
    let operation = format!("fetching {location}");
    let refused = |reason: String| Error::Refused(format!("{operation}: {reason}"));
    let unavailable = |reason: String| Error::Unavailable {
        operation: operation.clone(),
        reason,
    };
    tls::install_crypto_provider();
    // A redirect would send the token to another server.
    let http = reqwest::Client::builder()
        .connect_timeout(CONNECT_TIMEOUT.min(request.timeout))
        .redirect(redirect::Policy::none())
        .build()
        .map_err(|error| refused(error.without_url().to_string()))?;
    let mut get = http.get(url).header(header::ACCEPT, CONTENT_TYPES).header(
        header::USER_AGENT,
        concat!("backstitch/", env!("CARGO_PKG_VERSION")),
    );
    if !request.bearer.is_empty() {
        get = get.bearer_auth(request.bearer.reveal());
    }
    let receive = async {
        let response = get.send().await;
        let response =
            response.map_err(|error| unavailable(format_error_chain(&error.without_url())))?;
        let format =
            response_format(&response).map_err(|rejection| match rejection.is_transient {
                true => unavailable(rejection.reason),
                false => refused(rejection.reason),
            })?;
        write_body(response, request.bytes_max, path, &refused, &unavailable).await?;
        Ok(format)
    };
    let timeout_error = |_| refused(format!("no complete response within {:?}", request.timeout));
    tokio::time::timeout(request.timeout, receive)
        .await
        .map_err(timeout_error)?
}

/// The URL, and the part of it that may be shown.
fn parse_url(url: &Secret) -> Result<(Url, String)> {
    let invalid_url = |reason: &str| {
        Error::Refused(format!(
            "the URL of the expected totals is invalid: {reason}"
        ))
    };
    let url = Url::parse(url.reveal()).map_err(|error| invalid_url(&error.to_string()))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(invalid_url("it must begin with https:// or http://"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(invalid_url(
            "it contains a user; use a bearer token from a file or the environment instead",
        ));
    }
    let mut location = url.clone();
    location.set_query(None);
    location.set_fragment(None);
    let location = location.to_string();
    Ok((url, location))
}

/// The format of a response; otherwise the reason why it is rejected, and whether a retry may help.
fn response_format(response: &Response) -> std::result::Result<ResponseFormat, Rejection> {
    let rejected = |is_transient, reason| {
        Err(Rejection {
            is_transient,
            reason,
        })
    };
    let status = response.status();
    if status.is_redirection() {
        let reason = format!("the server redirects ({status}); use the URL that it redirects to");
        return rejected(false, reason);
    }
    if status != StatusCode::OK {
        let is_transient = status.is_server_error()
            || [StatusCode::TOO_MANY_REQUESTS, StatusCode::REQUEST_TIMEOUT].contains(&status);
        return rejected(
            is_transient,
            format!("the server returned {status}, not 200"),
        );
    }
    let links = response.headers().get_all(header::LINK).iter();
    let mut links = links.filter_map(|link| link.to_str().ok());
    if links.any(|link| link.replace(['"', ' '], "").contains("rel=next")) {
        let reason = "the response is only one page (its header Link names the next one); use a URL that returns all of it";
        return rejected(false, reason.to_owned());
    }
    let content_type = response.headers().get(header::CONTENT_TYPE);
    let content_type = content_type
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let media_type = content_type.split(';').next().unwrap_or_default().trim();
    match media_type.to_ascii_lowercase().as_str() {
        "text/csv" | "application/csv" => Ok(ResponseFormat::Csv),
        "application/x-ndjson"
        | "application/jsonl"
        | "application/x-jsonlines"
        | "application/jsonlines"
        | "application/ndjson" => Ok(ResponseFormat::JsonLines),
        "application/json" => Ok(ResponseFormat::Json),
        _ => rejected(
            false,
            format!("the response has the type {content_type:?}; expected one of {CONTENT_TYPES}"),
        ),
    }
}

/// The reason why a response is rejected.
struct Rejection {
    is_transient: bool,
    reason: String,
}

async fn write_body(
    mut response: Response,
    bytes_max: u64,
    path: &Path,
    refused: &impl Fn(String) -> Error,
    unavailable: &impl Fn(String) -> Error,
) -> Result<()> {
    let too_large = || {
        refused(format!(
            "the response is larger than {bytes_max} bytes (batch.expected_bytes_max); request less data"
        ))
    };
    if response
        .content_length()
        .is_some_and(|length| length > bytes_max)
    {
        return Err(too_large());
    }
    let broken =
        |error: std::io::Error| Error::broken(format!("writing {}", path.display()), error);
    let mut file = std::io::BufWriter::new(std::fs::File::create_new(path).map_err(broken)?);
    let mut bytes = 0_u64;
    loop {
        let chunk = response.chunk().await;
        let Some(chunk) =
            chunk.map_err(|error| unavailable(format_error_chain(&error.without_url())))?
        else {
            return file.flush().map_err(broken);
        };
        bytes = bytes.saturating_add(chunk.len() as u64);
        if bytes > bytes_max {
            return Err(too_large());
        }
        file.write_all(&chunk).map_err(broken)?;
    }
}
