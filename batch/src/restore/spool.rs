//! What another system, or a query of the canonical store, says is expected: written to a file of so many bytes at most,
//! from where it goes the way of any file. So all checks are in one place.

use std::fmt;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::TryStreamExt;
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;
use stores::http_fetch::{FetchRequest, ResponseFormat, fetch};
use tokio_util::sync::CancellationToken;

use super::claims::{Once, unmarked};
use super::request::{Address, Expected, ReconcileRequest};
use super::sides::scratch;
use crate::batch::Batch;
use crate::lease::check_stop;
use crate::{Error, Progress, Result};

/// Fields of an answer that say that there is more of it elsewhere.
const MORE: [&str; 5] = ["next", "cursor", "next_cursor", "next_page", "has_more"];

/// What is expected, in a file.
pub(crate) struct Spooled {
    pub(crate) path: PathBuf,
    _folder: tempfile::TempDir,
}

impl Batch {
    /// Writes to a file what a request expects, where it is not in one.
    ///
    /// # Errors
    /// [`Error::Request`] for an answer that can't be read as rows, those of who is asked.
    pub(crate) async fn spooled(
        &self,
        request: &ReconcileRequest,
        (progress, stop): (&dyn Progress, &CancellationToken),
    ) -> Result<Option<Spooled>> {
        let folder = match &request.expected {
            Expected::Answer(_) | Expected::Query(_) => self.engine.create_scratch_folder()?,
            Expected::Archive | Expected::Canonical | Expected::File(_) => return Ok(None),
        };
        let asking = async {
            match &request.expected {
                Expected::Answer(address) => {
                    let name = request.expected.to_string();
                    self.answered((address, &name), folder.path()).await
                }
                Expected::Query(query) => self.queried(query, folder.path(), progress, stop).await,
                _ => Err(Error::Fault(
                    "the expected values have no external source".to_owned(),
                )),
            }
        };
        let path = tokio::select! {
            done = asking => done?,
            () = stop.cancelled() => return Err(Error::Stopped),
        };
        Ok(Some(Spooled {
            path,
            _folder: folder,
        }))
    }

    /// Asks another system.
    async fn answered(&self, (address, name): (&Address, &str), folder: &Path) -> Result<PathBuf> {
        let question = FetchRequest {
            url: &address.url,
            bearer: &address.bearer,
            bytes_max: self.options.expected_bytes_max,
            timeout: Duration::from_millis(self.options.expected_wait_ms),
        };
        let answer = folder.join("answer");
        let (path, is_rows) = match fetch(&question, &answer).await? {
            ResponseFormat::Csv => (folder.join("expected.csv"), true),
            ResponseFormat::JsonLines => (folder.join("expected.jsonl"), true),
            ResponseFormat::Json => (folder.join("expected.jsonl"), false),
        };
        if is_rows {
            std::fs::rename(&answer, &path).map_err(|error| scratch(&path, error))?;
            return Ok(path);
        }
        let (name, to) = (name.to_owned(), path.clone());
        tokio::task::spawn_blocking(move || as_lines(&name, &answer, &to))
            .await
            .map_err(|e| Error::fault("reading the response ended", e))??;
        Ok(path)
    }

    /// Asks the canonical store.
    async fn queried(
        &self,
        query: &str,
        folder: &Path,
        progress: &dyn Progress,
        stop: &CancellationToken,
    ) -> Result<PathBuf> {
        let path = folder.join("expected.csv");
        let canon = &self.ports.entities;
        let mut answered = canon.query(query, self.options.expected_wait_ms).await?;
        let full = |error: csv::Error| scratch(&path, error);
        let file = File::create_new(&path).map_err(|error| scratch(&path, error))?;
        let mut writer = csv::Writer::from_writer(file);
        writer.write_record(&answered.columns).map_err(full)?;
        let mut bytes = 0_u64;
        while let Some(rows) = answered.rows.try_next().await? {
            check_stop(stop)?;
            for row in &rows {
                let values = row.iter().map(|value| value.as_deref().unwrap_or_default());
                bytes += values
                    .clone()
                    .map(|value| value.len() as u64 + 1)
                    .sum::<u64>();
                writer.write_record(values).map_err(full)?;
            }
            if bytes > self.options.expected_bytes_max {
                return Err(Error::Request(format!(
                    "the query returns more than {} bytes (batch.expected_bytes_max): restrict it",
                    self.options.expected_bytes_max
                )));
            }
            progress.advance(rows.len() as u64);
        }
        writer.flush().map_err(|error| scratch(&path, error))?;
        Ok(path)
    }
}

/// Writes the objects of a JSON answer to a file, one on each line, without holding more than one of them.
fn as_lines(name: &str, answer: &Path, to: &Path) -> Result<()> {
    let wrong = |what: String| Error::Request(format!("{name}: {what}. Nothing was compared"));
    let open = File::open(answer).map_err(|error| scratch(answer, error))?;
    let out = File::create_new(to).map_err(|error| scratch(to, error))?;
    let mut lines = Lines {
        out: BufWriter::new(out),
        list: None,
        rows: 0,
        failed: None,
    };
    let open = unmarked(open).map_err(|error| scratch(answer, error))?;
    let mut from = serde_json::Deserializer::from_reader(open);
    let read = Whole(&mut lines)
        .deserialize(&mut from)
        .and_then(|()| from.end());
    if let Some(error) = lines.failed.take() {
        return Err(scratch(to, error));
    }
    read.map_err(|error| wrong(error.to_string()))?;
    if lines.list.is_none() {
        return Err(wrong(
            "expected a JSON array of objects, or an object with one such array".to_owned(),
        ));
    }
    lines.out.flush().map_err(|error| scratch(to, error))
}

/// Where objects go.
struct Lines {
    out: BufWriter<File>,
    /// The list that they are of.
    list: Option<String>,
    rows: u64,
    failed: Option<std::io::Error>,
}

impl Lines {
    /// Writes the objects of a list; a list of anything else says nothing of rows.
    fn take<'de, A: SeqAccess<'de>>(&mut self, list: &str, mut seq: A) -> Result<(), A::Error> {
        let mut is_of_objects = true;
        let mut first = true;
        while let Some(value) = seq.next_element::<Box<RawValue>>()? {
            let is_object = value.get().starts_with('{');
            if first && !is_object {
                is_of_objects = false;
            }
            first = false;
            if !is_of_objects {
                continue;
            }
            if !is_object {
                return Err(A::Error::custom(format!(
                    "{list} has an element that is not an object"
                )));
            }
            let Once(value) = serde_json::from_str(value.get()).map_err(A::Error::custom)?;
            let value = Value::Object(value);
            self.name(list)?;
            self.rows += 1;
            if let Err(error) = writeln!(self.out, "{value}") {
                self.failed = Some(error);
                return Err(A::Error::custom("the disk"));
            }
        }
        if first {
            self.name_empty(list);
        }
        Ok(())
    }

    fn name<E: serde::de::Error>(&mut self, list: &str) -> Result<(), E> {
        match &self.list {
            Some(known) if known != list && self.rows > 0 => Err(E::custom(format!(
                "both {known} and {list} are arrays of objects: respond with only one"
            ))),
            _ => {
                self.list = Some(list.to_owned());
                Ok(())
            }
        }
    }

    fn name_empty(&mut self, list: &str) {
        self.list.get_or_insert_with(|| list.to_owned());
    }
}

/// The answer as a whole: a list, or an object with one.
struct Whole<'a>(&'a mut Lines);

impl<'de> DeserializeSeed<'de> for Whole<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Whole<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of objects, or an object with one such array")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<(), A::Error> {
        self.0.take("the answer", seq)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Self(lines) = self;
        while let Some(name) = map.next_key::<String>()? {
            let told = map.next_value_seed(Field(&mut *lines, &name))?;
            if told && MORE.contains(&name.as_str()) {
                return Err(A::Error::custom(format!(
                    "{name} shows that this is only one page: request all values at once"
                )));
            }
        }
        Ok(())
    }
}

/// A field of the answer: whether it says anything.
struct Field<'a>(&'a mut Lines, &'a str);

impl<'de> DeserializeSeed<'de> for Field<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<bool, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Field<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<bool, A::Error> {
        self.0.take(self.1, seq)?;
        Ok(true)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<bool, A::Error> {
        while map
            .next_entry::<serde::de::IgnoredAny, serde::de::IgnoredAny>()?
            .is_some()
        {}
        Ok(true)
    }

    fn visit_bool<E>(self, value: bool) -> Result<bool, E> {
        Ok(value)
    }

    fn visit_i64<E>(self, _: i64) -> Result<bool, E> {
        Ok(true)
    }

    fn visit_u64<E>(self, _: u64) -> Result<bool, E> {
        Ok(true)
    }

    fn visit_f64<E>(self, _: f64) -> Result<bool, E> {
        Ok(true)
    }

    fn visit_str<E>(self, value: &str) -> Result<bool, E> {
        Ok(!value.is_empty())
    }

    fn visit_unit<E>(self) -> Result<bool, E> {
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines_of(answer: &str) -> Result<String> {
        let folder = tempfile::tempdir().expect("a folder");
        let (from, to) = (folder.path().join("a"), folder.path().join("b"));
        std::fs::write(&from, answer).expect("an answer");
        as_lines("x", &from, &to)?;
        Ok(std::fs::read_to_string(to).expect("lines"))
    }

    #[test]
    fn objects_become_lines() {
        let two = "{\"a\":1}\n{\"a\":2}\n";
        for answer in [
            r#"[{"a":1},{"a":2}]"#,
            r#"{"at":"now","tags":["x"],"rows":[{"a":1},{"a":2}],"of":{"b":[{"c":1}]},"next":null}"#,
            r#"{"empty":[],"rows":[{"a":1},{"a":2}],"has_more":false}"#,
            "\u{feff}[ {\"a\" : 1},\n{\"a\":\n2} ]",
        ] {
            assert_eq!(lines_of(answer).expect(answer), two);
        }
        assert_eq!(lines_of("[]").expect("none"), "");
    }

    #[test]
    fn what_is_no_list_is_told() {
        for (answer, why) in [
            ("7", "an array"),
            (r#"{"a":1}"#, "expected a JSON array"),
            (r#"[{"a":1},2]"#, "not an object"),
            (r#"[{"a":1,"a":2}]"#, "\"a\" occurs twice"),
            (r#"{"a":[{"x":1}],"b":[{"x":1}]}"#, "both a and b"),
            (r#"{"a":[{"x":1}],"cursor":"abc"}"#, "only one page"),
            (r#"[{"a":1}"#, "EOF"),
            (r#"[{"a":1}] 2"#, "trailing"),
        ] {
            let error = lines_of(answer).expect_err(answer).to_string();
            assert!(error.contains(why), "{answer}: {error}");
        }
    }
}
