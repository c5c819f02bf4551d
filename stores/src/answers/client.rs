//! What another system answers to a GET, written to a file: so much at most, within so long, and only what is named.
//!
//! Neither the address nor who asks is ever shown beyond host and path: both may hold a secret.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use reqwest::{Response, StatusCode, Url, header, redirect};

use super::{Format, Question};
use crate::patience::causes;
use crate::{Error, Result, Secret, tls};

/// How long to wait for a connection.
const CONNECT: Duration = Duration::from_secs(10);
/// What is understood.
const KINDS: &str = "text/csv, application/x-ndjson, application/json";

/// Writes an answer to a file that is not there, and says in which format it is.
///
/// # Errors
/// [`Error::Refused`] for an address that can't be asked, an answer that is none (another status than 200, a redirect,
/// another type), one that is larger or later than it may be; [`Error::Unavailable`] where nobody answers or the
/// answer is one that may pass; [`Error::Broken`] where the file can't be written.
pub async fn fetch(question: &Question<'_>, to: &Path) -> Result<Format> {
    let (url, shown) = address(question.url)?;
    let doing = format!("asking {shown}");
    let refused = |why: String| Error::Refused(format!("{doing}: {why}"));
    let unavailable = |why: String| Error::Unavailable {
        what: doing.clone(),
        why,
    };
    tls::prepare();
    // A redirect would tell somebody else who asks.
    let http = reqwest::Client::builder()
        .connect_timeout(CONNECT.min(question.wait))
        .redirect(redirect::Policy::none())
        .build()
        .map_err(|error| refused(error.without_url().to_string()))?;
    let mut asked = http.get(url).header(header::ACCEPT, KINDS).header(
        header::USER_AGENT,
        concat!("backstitch/", env!("CARGO_PKG_VERSION")),
    );
    if !question.bearer.is_empty() {
        asked = asked.bearer_auth(question.bearer.reveal());
    }
    let answering = async {
        let answer = asked.send().await;
        let answer = answer.map_err(|error| unavailable(causes(&error.without_url())))?;
        let format = format_of(&answer).map_err(|(may_pass, why)| match may_pass {
            true => unavailable(why),
            false => refused(why),
        })?;
        write(answer, question.bytes_max, to, (&refused, &unavailable)).await?;
        Ok(format)
    };
    let late = |_| refused(format!("no whole answer within {:?}", question.wait));
    tokio::time::timeout(question.wait, answering)
        .await
        .map_err(late)?
}

/// The address, and what of it may be shown.
fn address(url: &Secret) -> Result<(Url, String)> {
    let wrong = |why: &str| Error::Refused(format!("the address of what is expected: {why}"));
    let url = Url::parse(url.reveal()).map_err(|error| wrong(&error.to_string()))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(wrong("write one that begins with https:// or http://"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(wrong(
            "holds a user; let a bearer token say who asks, from a file or the environment",
        ));
    }
    let mut shown = url.clone();
    shown.set_query(None);
    shown.set_fragment(None);
    let shown = shown.to_string();
    Ok((url, shown))
}

/// In which format an answer is; else why it is none, and whether another one may come later.
fn format_of(answer: &Response) -> std::result::Result<Format, (bool, String)> {
    let status = answer.status();
    if status.is_redirection() {
        return Err((
            false,
            format!("it leads elsewhere ({status}): name the address where it leads to"),
        ));
    }
    if status != StatusCode::OK {
        let may_pass = status.is_server_error()
            || [StatusCode::TOO_MANY_REQUESTS, StatusCode::REQUEST_TIMEOUT].contains(&status);
        return Err((may_pass, format!("it answered {status}, not 200")));
    }
    let link = answer.headers().get_all(header::LINK).iter();
    let mut link = link.filter_map(|link| link.to_str().ok());
    if link.any(|link| link.replace(['"', ' '], "").contains("rel=next")) {
        let why =
            "it is a page only (its header Link names the next one): ask for all of it at once";
        return Err((false, why.to_owned()));
    }
    let kind = answer.headers().get(header::CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let plain = kind.split(';').next().unwrap_or_default().trim();
    match plain.to_ascii_lowercase().as_str() {
        "text/csv" | "application/csv" => Ok(Format::Csv),
        "application/x-ndjson"
        | "application/jsonl"
        | "application/x-jsonlines"
        | "application/jsonlines"
        | "application/ndjson" => Ok(Format::JsonLines),
        "application/json" => Ok(Format::Json),
        _ => Err((
            false,
            format!("it answers with {kind:?}, not with one of {KINDS}"),
        )),
    }
}

async fn write(
    mut answer: Response,
    bytes_max: u64,
    to: &Path,
    (refused, unavailable): (&impl Fn(String) -> Error, &impl Fn(String) -> Error),
) -> Result<()> {
    let too_large = || {
        refused(format!(
            "the answer is larger than {bytes_max} bytes (batch.expected_bytes_max): ask for less at once"
        ))
    };
    if answer
        .content_length()
        .is_some_and(|length| length > bytes_max)
    {
        return Err(too_large());
    }
    let broken = |error: std::io::Error| Error::broken(format!("writing {}", to.display()), error);
    let mut file = std::io::BufWriter::new(std::fs::File::create_new(to).map_err(broken)?);
    let mut bytes = 0_u64;
    loop {
        let chunk = answer.chunk().await;
        let Some(chunk) = chunk.map_err(|error| unavailable(causes(&error.without_url())))? else {
            return file.flush().map_err(broken);
        };
        bytes = bytes.saturating_add(chunk.len() as u64);
        if bytes > bytes_max {
            return Err(too_large());
        }
        file.write_all(&chunk).map_err(broken)?;
    }
}
