//! The body of a request: read as it comes, and never waited for without end.

use axum::body::BodyDataStream;
use axum::extract::Request;
use axum::http::{HeaderMap, header};
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::Api;
use super::problem::{Kind, Problem};

/// The largest body that is one JSON object of a few fields, in bytes.
const OBJECT_BYTES_MAX: u64 = 16 * 1024;
/// The largest one that has lists of ids.
pub(crate) const LISTS_BYTES_MAX: u64 = 256 * 1024;

/// Refuses what the head of a request says to be too large or encoded.
pub(crate) fn check_head(headers: &HeaderMap, limit: u64) -> Result<(), Problem> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let encoding = text(header::CONTENT_ENCODING).unwrap_or("identity");
    if !encoding.eq_ignore_ascii_case("identity") {
        return Err(Problem::new(
            Kind::EncodedBody,
            format!("content-encoding {encoding} is not read here: send plain text"),
        ));
    }
    let length = text(header::CONTENT_LENGTH).and_then(|length| length.parse::<u64>().ok());
    if length.is_some_and(|length| length > limit) {
        return Err(too_large(limit));
    }
    Ok(())
}

/// The problem of a body of more than `limit` bytes.
pub(crate) fn too_large(limit: u64) -> Problem {
    Problem::new(
        Kind::BodyTooLarge,
        format!("at most {limit} bytes are taken at a time: send less"),
    )
}

/// The next piece of a body.
pub(crate) async fn next(api: &Api, body: &mut BodyDataStream) -> Result<Option<Bytes>, Problem> {
    let limit = api.options.body_idle_timeout();
    match timeout(limit, body.next()).await {
        Ok(None) => Ok(None),
        Ok(Some(Ok(data))) => Ok(Some(data)),
        Ok(Some(Err(error))) => Err(Problem::new(
            Kind::BadBody,
            format!("the body broke off: {error}; send it again"),
        )),
        Err(_) => Err(slow(api)),
    }
}

/// The body as a JSON object of a shape, of which `example` is one. It is small: all of it must come
/// within the time that a client may be silent.
pub(crate) async fn object<T: DeserializeOwned>(
    api: &Api,
    request: Request,
    example: &str,
) -> Result<T, Problem> {
    object_up_to(api, request, OBJECT_BYTES_MAX, example).await
}

/// The same of at most so many bytes.
pub(crate) async fn object_up_to<T: DeserializeOwned>(
    api: &Api,
    request: Request,
    bytes_max: u64,
    example: &str,
) -> Result<T, Problem> {
    let body = text_up_to(api, request, bytes_max).await?;
    // An array of the fields' values would do for serde.
    let parsed = if body.trim_ascii_start().starts_with(b"{") {
        serde_json::from_slice(&body).map_err(|error| error.to_string())
    } else {
        Err("it is not a JSON object".to_owned())
    };
    parsed.map_err(|error| {
        Problem::new(
            Kind::BadBody,
            format!("the body can't be used: {error}; send JSON such as {example}"),
        )
    })
}

/// A small body, all of which must come within the time that a client may be silent.
pub(crate) async fn text_up_to(
    api: &Api,
    request: Request,
    bytes_max: u64,
) -> Result<BytesMut, Problem> {
    check_head(request.headers(), bytes_max)?;
    let mut stream = request.into_body().into_data_stream();
    let whole = async {
        let mut body = BytesMut::new();
        while let Some(data) = next(api, &mut stream).await? {
            body.extend_from_slice(&data);
            if body.len() as u64 > bytes_max {
                return Err(too_large(bytes_max));
            }
        }
        Ok(body)
    };
    let body = timeout(api.options.body_idle_timeout(), whole).await;
    body.map_err(|_| slow(api))?
}

fn slow(api: &Api) -> Problem {
    let limit = api.options.body_idle_timeout_ms;
    Problem::new(
        Kind::SlowBody,
        format!("the body did not come within {limit} ms: send it again"),
    )
}
