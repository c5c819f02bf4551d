//! Request bodies: streaming, decompression, and limits of size and rate.

use std::io;
use std::time::Duration;

use async_compression::tokio::bufread::{GzipDecoder, ZstdDecoder};
use async_compression::zstd::DParameter;
use axum::body::{Body, BodyDataStream};
use axum::extract::Request;
use axum::http::{HeaderMap, header};
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, timeout};
use tokio_util::io::{ReaderStream, StreamReader};

use super::Api;
use super::problem::{Problem, ProblemKind};

/// The largest body that is a JSON object of a few fields, in bytes.
const OBJECT_BYTES_MAX: u64 = 16 * 1024;
/// The largest body that has lists of ids, in bytes.
pub(crate) const LISTS_BYTES_MAX: u64 = 256 * 1024;
/// The largest decompressed chunk, in bytes.
const DECODED_BYTES: usize = 64 * 1024;
/// The largest window of a zstd frame (RFC 9659), as a power of two. Each zstd body may hold it in
/// memory.
const ZSTD_WINDOW_LOG_MAX: u32 = 23;

/// How a body is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Coding {
    Identity,
    Gzip,
    Zstd,
}

impl Coding {
    /// Parses `Content-Encoding`. Refuses more than one compression.
    fn from_headers(headers: &HeaderMap) -> Result<Self, Problem> {
        let mut coding = Self::Identity;
        for value in headers.get_all(header::CONTENT_ENCODING) {
            let value = String::from_utf8_lossy(value.as_bytes()).to_ascii_lowercase();
            for name in value.split(',').map(str::trim) {
                coding = match (coding, name) {
                    (coding, "" | "identity") => coding,
                    (Self::Identity, "gzip" | "x-gzip") => Self::Gzip,
                    (Self::Identity, "zstd") => Self::Zstd,
                    (Self::Identity, other) => {
                        return Err(unsupported(&format!("content-encoding {other:?}")));
                    }
                    (Self::Gzip | Self::Zstd, _) => {
                        return Err(unsupported("more than one content-encoding"));
                    }
                };
            }
        }
        Ok(coding)
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Identity => "plain",
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
        }
    }
}

/// `Accept-Encoding` of a 415: for bodies that may be compressed, and for those that may not.
const SUPPORTED_CODINGS: &str = "gzip, zstd";
const NO_CODING: &str = "identity";

fn unsupported(coding: &str) -> Problem {
    let detail = format!(
        "{coding} is not supported; send the body uncompressed, or as one of {SUPPORTED_CODINGS}"
    );
    ProblemKind::EncodedBody
        .with_detail(detail)
        .with_accept_encoding(SUPPORTED_CODINGS)
}

/// Refuses a body whose headers name an unsupported coding or a length beyond `limit`.
pub(crate) fn check_compressible(headers: &HeaderMap, limit: u64) -> Result<Coding, Problem> {
    let coding = Coding::from_headers(headers)?;
    check_length(headers, limit)?;
    Ok(coding)
}

/// As [`check_compressible`], for a body that must not be compressed.
fn check_uncompressed(headers: &HeaderMap, limit: u64) -> Result<(), Problem> {
    match Coding::from_headers(headers) {
        Ok(Coding::Identity) => check_length(headers, limit),
        Ok(Coding::Gzip | Coding::Zstd) | Err(_) => {
            let detail = "compressed bodies are not supported here; send the body uncompressed";
            Err(ProblemKind::EncodedBody
                .with_detail(detail)
                .with_accept_encoding(NO_CODING))
        }
    }
}

fn check_length(headers: &HeaderMap, limit: u64) -> Result<(), Problem> {
    let length = headers.get(header::CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|length| length > limit) {
        return Err(too_large(limit));
    }
    Ok(())
}

/// Builds the problem of a body of more than `limit` bytes.
fn too_large(limit: u64) -> Problem {
    ProblemKind::BodyTooLarge.with_detail(format!(
        "the body has more than {limit} bytes, decompressed; split it"
    ))
}

/// A body as a stream of decompressed chunks.
pub(crate) struct BodyChunks {
    chunks: BoxStream<'static, io::Result<Bytes>>,
    coding: Coding,
    bytes_left: u64,
    bytes_max: u64,
}

impl BodyChunks {
    /// Reads a body in chunks. `bytes_max` bounds its bytes before and after decompression.
    pub(crate) fn new(api: &Api, body: Body, coding: Coding, bytes_max: u64) -> Self {
        let raw = RawBody {
            body: body.into_data_stream(),
            bytes_max,
            rate: TransferRate::new(api),
        };
        let raw = stream::try_unfold(raw, RawBody::next).boxed();
        let chunks = match coding {
            Coding::Identity => raw,
            Coding::Gzip => {
                let mut decoder = GzipDecoder::new(StreamReader::new(raw));
                decoder.multiple_members(true);
                ReaderStream::with_capacity(decoder, DECODED_BYTES).boxed()
            }
            Coding::Zstd => {
                let window = DParameter::window_log_max(ZSTD_WINDOW_LOG_MAX);
                let raw = StreamReader::new(raw);
                let mut decoder = ZstdDecoder::with_params(raw, &[window]);
                decoder.multiple_members(true);
                ReaderStream::with_capacity(decoder, DECODED_BYTES).boxed()
            }
        };
        Self {
            chunks,
            coding,
            bytes_left: bytes_max,
            bytes_max,
        }
    }

    /// Reads the next chunk.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, Problem> {
        let chunk = match self.chunks.next().await {
            None => return Ok(None),
            Some(Ok(chunk)) => chunk,
            Some(Err(error)) => return Err(self.build_problem(error)),
        };
        let bytes_left = self.bytes_left.checked_sub(chunk.len() as u64);
        self.bytes_left = bytes_left.ok_or_else(|| too_large(self.bytes_max))?;
        Ok(Some(chunk))
    }

    fn build_problem(&self, error: io::Error) -> Problem {
        let error = match error.downcast::<BodyProblem>() {
            Ok(BodyProblem(problem)) => return problem,
            Err(error) => error,
        };
        let coding = self.coding.name();
        let detail = match error.kind() {
            io::ErrorKind::UnexpectedEof => format!("the body ends within a {coding} stream"),
            _ => format!("the body is not a {coding} stream: {error}"),
        };
        ProblemKind::BadBody.with_detail(format!("{detail}; send it again"))
    }
}

/// A problem of the raw body, passed through a decoder.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.detail())]
struct BodyProblem(Problem);

/// The raw body, before decompression.
struct RawBody {
    body: BodyDataStream,
    bytes_max: u64,
    rate: TransferRate,
}

impl RawBody {
    async fn next(mut self) -> io::Result<Option<(Bytes, Self)>> {
        match self.read_chunk().await {
            Ok(chunk) => Ok(chunk.map(|chunk| (chunk, self))),
            Err(problem) => Err(io::Error::other(BodyProblem(problem))),
        }
    }

    async fn read_chunk(&mut self) -> Result<Option<Bytes>, Problem> {
        let started_at = Instant::now();
        let chunk = match timeout(self.rate.time_left(), self.body.next()).await {
            Ok(None) => return Ok(None),
            Ok(Some(Ok(chunk))) => chunk,
            Ok(Some(Err(error))) => {
                let detail = format!("the body ended early: {error}; send it again");
                return Err(ProblemKind::BadBody.with_detail(detail));
            }
            Err(_) => return Err(self.rate.slow_body()),
        };
        self.rate.add(chunk.len() as u64, started_at.elapsed());
        if self.rate.bytes > self.bytes_max {
            return Err(too_large(self.bytes_max));
        }
        Ok(Some(chunk))
    }
}

/// The transfer rate of a body. Only the time spent waiting for the client counts.
struct TransferRate {
    /// How long a client may pause, and how long a body may take before its rate is checked.
    idle_timeout: Duration,
    /// 0 disables the limit.
    bytes_per_second_min: u64,
    bytes: u64,
    waited: Duration,
}

impl TransferRate {
    fn new(api: &Api) -> Self {
        Self {
            idle_timeout: api.options.body_idle_timeout(),
            bytes_per_second_min: api.options.body_bytes_per_second_min,
            bytes: 0,
            waited: Duration::ZERO,
        }
    }

    /// Counts a chunk. Bytes that arrived faster than the minimum let later ones be late by at most
    /// `idle_timeout`.
    fn add(&mut self, bytes: u64, waited: Duration) {
        self.bytes += bytes;
        self.waited += waited;
        if let Some(earned) = self.earned_time() {
            self.waited = self.waited.max(earned.saturating_sub(self.idle_timeout));
        }
    }

    /// Returns the time that the bytes take at the minimum rate.
    fn earned_time(&self) -> Option<Duration> {
        let earned_ms = self
            .bytes
            .saturating_mul(1_000)
            .checked_div(self.bytes_per_second_min)?;
        Some(Duration::from_millis(earned_ms))
    }

    /// Returns how long the next chunk may take.
    fn time_left(&self) -> Duration {
        let Some(earned) = self.earned_time() else {
            return self.idle_timeout;
        };
        let allowed = self.idle_timeout.saturating_add(earned);
        allowed.saturating_sub(self.waited).min(self.idle_timeout)
    }

    fn slow_body(&self) -> Problem {
        let (idle_ms, bytes_per_second) =
            (self.idle_timeout.as_millis(), self.bytes_per_second_min);
        let rate = match bytes_per_second {
            0 => String::new(),
            bytes => format!(", or arrived at less than {bytes} bytes a second"),
        };
        ProblemKind::SlowBody.with_detail(format!(
            "the body paused for {idle_ms} ms{rate}; send smaller bodies"
        ))
    }
}

/// Reads a small body as a JSON object like `example`. All of it must arrive within the idle
/// timeout of a body.
pub(crate) async fn parse_object<T: DeserializeOwned>(
    api: &Api,
    request: Request,
    example: &str,
) -> Result<T, Problem> {
    parse_object_up_to(api, request, OBJECT_BYTES_MAX, example).await
}

/// As [`parse_object`], with a limit of `bytes_max`.
pub(crate) async fn parse_object_up_to<T: DeserializeOwned>(
    api: &Api,
    request: Request,
    bytes_max: u64,
    example: &str,
) -> Result<T, Problem> {
    let body = read_up_to(api, request, bytes_max).await?;
    // serde would accept an array of the fields' values, too.
    let parsed = if body.trim_ascii_start().starts_with(b"{") {
        schemas::json_error::decode(&body)
    } else {
        Err("it is not a JSON object".to_owned())
    };
    parsed.map_err(|error| {
        ProblemKind::BadBody.with_detail(format!(
            "the body is not valid: {error}; send JSON such as {example}"
        ))
    })
}

/// Reads a small body. All of it must arrive within the idle timeout of a body.
pub(crate) async fn read_up_to(
    api: &Api,
    request: Request,
    bytes_max: u64,
) -> Result<BytesMut, Problem> {
    check_uncompressed(request.headers(), bytes_max)?;
    let mut chunks = BodyChunks::new(api, request.into_body(), Coding::Identity, bytes_max);
    let read = async {
        let mut body = BytesMut::new();
        while let Some(data) = chunks.next().await? {
            body.extend_from_slice(&data);
        }
        Ok(body)
    };
    let limit = api.options.body_idle_timeout();
    timeout(limit, read).await.map_err(|_| {
        let limit = limit.as_millis();
        let detail = format!("the body did not arrive within {limit} ms; send it again");
        ProblemKind::SlowBody.with_detail(detail)
    })?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn received_bytes_extend_the_time_of_a_body() {
        let idle_timeout = Duration::from_secs(30);
        let left = |bytes_per_second_min, bytes, waited_s| {
            let waited = Duration::from_secs(waited_s);
            let rate = TransferRate {
                idle_timeout,
                bytes_per_second_min,
                bytes,
                waited,
            };
            rate.time_left().as_secs()
        };
        assert_eq!(left(4_096, 0, 0), 30);
        assert_eq!(left(4_096, 7, 28), 2);
        assert_eq!(left(4_096, 7, 40), 0);
        // A body at the minimum rate has no time limit.
        assert_eq!(left(4_096, 4_096 * 3_600, 3_600), 30);
        assert_eq!(left(4_096, 4_096 * 3_600, 3_629), 1);
        assert_eq!(left(1, u64::MAX, 0), 30);
        assert_eq!(left(0, 7, 1_000_000), 30);
    }

    /// A fast start does not allow hours of silence later.
    #[test]
    fn a_fast_start_allows_only_one_pause() {
        let idle_timeout = Duration::from_secs(30);
        let mut rate = TransferRate {
            idle_timeout,
            bytes_per_second_min: 512,
            bytes: 0,
            waited: Duration::ZERO,
        };
        rate.add(60 << 20, Duration::from_secs(1));
        assert_eq!(rate.time_left(), idle_timeout);
        rate.add(1, Duration::from_secs(29));
        rate.add(1, Duration::from_secs(29));
        assert!(
            rate.time_left() < Duration::from_secs(3),
            "{:?}",
            rate.time_left()
        );
    }
}
