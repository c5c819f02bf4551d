use std::sync::Arc;

use arrow::array::{Float64Array, Int32Array, TimestampMillisecondArray, UInt64Array};
use parquet::arrow::ArrowWriter;
use schemas::plays::check_line;

use super::*;

fn file(columns: Vec<(&str, ArrayRef)>) -> File {
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let mut writer =
        ArrowWriter::try_new(tempfile::tempfile().unwrap(), batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.into_inner().unwrap()
}

fn text(values: [&str; 2]) -> ArrayRef {
    Arc::new(StringArray::from(values.to_vec()))
}

fn plays() -> Vec<(&'static str, ArrayRef)> {
    vec![
        ("kind", text(["play", "stream"])),
        ("event_id", text(["a", "b"])),
        ("track_id", Arc::new(Int32Array::from(vec![1, 2]))),
        ("owner_id", Arc::new(UInt64Array::from(vec![7, u64::MAX]))),
        (
            "country",
            Arc::new(StringArray::from(vec![Some("DE"), None])),
        ),
        (
            "at",
            Arc::new(TimestampMillisecondArray::from(vec![
                1_500,
                i64::MAX / 2_000,
            ])),
        ),
        ("other", Arc::new(Float64Array::from(vec![1.0, 2.0]))),
    ]
}

fn lines(file: File) -> anyhow::Result<Vec<String>> {
    let mut lines = Vec::new();
    read(file, &mut |chunk| {
        lines.extend(
            chunk
                .lines()
                .map(|(_, bytes)| String::from_utf8(bytes.to_vec()).unwrap()),
        );
        true
    })?;
    Ok(lines)
}

#[test]
fn rows_become_lines() {
    let lines = lines(file(plays())).unwrap();
    assert_eq!(lines.len(), 2);
    assert_eq!(check_line(lines[0].as_bytes()), Ok(7));
    let event: Value = serde_json::from_str(&lines[0]).unwrap();
    assert_eq!(event["at"], "1970-01-01T00:00:01.5Z");
    assert_eq!(event["country"], "DE");
    assert!(event.get("other").is_none());
    assert!(check_line(lines[1].as_bytes()).is_err());
}

#[test]
fn wrong_files_are_refused_as_a_whole() {
    let without = plays()
        .into_iter()
        .filter(|(name, _)| *name != "at")
        .collect();
    let error = lines(file(without)).unwrap_err().to_string();
    assert!(error.starts_with("there is no column at"), "{error}");
    let mut wrong = plays();
    wrong[2].1 = Arc::new(Float64Array::from(vec![1.0, 2.0]));
    let error = lines(file(wrong)).unwrap_err().to_string();
    assert!(
        error.starts_with("column track_id is Float64, not an integer"),
        "{error}"
    );
    let mut broken = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut broken, b"{\"event_id\":1}\n").unwrap();
    assert!(
        lines(broken)
            .unwrap_err()
            .to_string()
            .contains("no Parquet file")
    );
}
