//! Laws of the archive port.

use std::sync::Arc;

use arrow::array::{AsArray, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Int64Type, Schema};
use bytes::Bytes;
use futures::TryStreamExt;
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;
use stores::archive::{Archive, Created};
use stores::{Error, Result, Stores};

/// A stored object can be read until it is replaced or deleted. A missing object is `None`, not an
/// error.
pub async fn objects_round_trip(ports: &Stores) -> Result<()> {
    let archive = &ports.archive;
    assert_eq!(archive.get("day=1/a").await?, None);
    archive.put("day=1/a", "first".into()).await?;
    archive.put("day=1/a", "second".into()).await?;
    assert_eq!(
        archive.get("day=1/a").await?.as_deref(),
        Some(&b"second"[..])
    );
    archive.delete("day=1/a").await?;
    archive.delete("day=1/a").await?;
    assert_eq!(archive.get("day=1/a").await?, None);
    Ok(())
}

/// If several writers create the same object, exactly one succeeds, and the object is entirely that
/// writer's.
pub async fn one_writer_creates_an_object(ports: &Stores, other_ports: &Stores) -> Result<()> {
    let create = async |ports: &Stores, text: &'static str| {
        ports.archive.create("manifests/1", text.into()).await
    };
    let (first, second, third) = tokio::join!(
        create(ports, "one"),
        create(other_ports, "other"),
        create(ports, "third")
    );
    let outcomes = [("one", first?), ("other", second?), ("third", third?)];
    let winners: Vec<&str> = outcomes
        .iter()
        .filter(|(_, created)| *created == Created::New)
        .map(|(text, _)| *text)
        .collect();
    assert_eq!(winners.len(), 1, "{outcomes:?}");
    let stored = other_ports.archive.get("manifests/1").await?;
    assert_eq!(stored.as_deref(), Some(winners[0].as_bytes()));
    Ok(())
}

/// A folder's objects are listed in order, without objects outside the folder.
pub async fn folders_are_listed(ports: &Stores) -> Result<()> {
    let archive = &ports.archive;
    assert!(archive.list("a").await?.is_empty());
    for path in ["a/2", "a/10", "a/b/1", "ab/1", "b/1"] {
        archive.put(path, "x".into()).await?;
    }
    assert_eq!(archive.list("a").await?, ["a/10", "a/2", "a/b/1"]);
    Ok(())
}

/// Builds an uncompressed file of `rows` numbers with `group_rows` in each row group.
fn numbers(rows: u64, group_rows: usize) -> Bytes {
    let schema = Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, false)]));
    let properties = WriterProperties::builder()
        .set_max_row_group_row_count(Some(group_rows))
        .set_dictionary_enabled(false)
        .build();
    let mut writer = ArrowWriter::try_new(Vec::new(), Arc::clone(&schema), Some(properties))
        .expect("the schema can be written");
    let numbers = Int64Array::from_iter_values((0..rows).map(number));
    let batch = RecordBatch::try_new(schema, vec![Arc::new(numbers)]).expect("one column");
    writer.write(&batch).expect("rows can be written");
    stores::parquet_file::finish(writer).expect("the file can be ended")
}

fn number(row: u64) -> i64 {
    row.wrapping_mul(0x9E37_79B9_7F4A_7C15).cast_signed()
}

/// Reads the numbers of some row groups, a few at a time.
async fn read(archive: &Archive, path: &str, groups: &[usize]) -> Result<Vec<i64>> {
    let batches = archive.read_rows(path, groups.to_vec(), 4).await?;
    let batches: Vec<RecordBatch> = batches.try_collect().await?;
    assert!(batches.iter().all(|batch| batch.num_rows() <= 4));
    let columns = batches.iter().map(|batch| batch.column(0));
    let values = columns.map(|column| column.as_primitive::<Int64Type>().values().to_vec());
    Ok(values.flatten().collect())
}

/// The requested row groups are returned in the requested order.
pub async fn row_groups_are_read_in_order(ports: &Stores) -> Result<()> {
    let archive = &ports.archive;
    archive.put("few.parquet", numbers(35, 10)).await?;
    let expected: Vec<i64> = (20..30).chain(0..10).map(number).collect();
    assert_eq!(read(archive, "few.parquet", &[2, 0]).await?, expected);
    assert!(read(archive, "missing.parquet", &[0]).await.is_err());
    archive.put("empty.parquet", Bytes::new()).await?;
    let refused = read(archive, "empty.parquet", &[0]).await;
    assert!(
        matches!(refused, Err(Error::DamagedFile { .. })),
        "{refused:?}"
    );
    Ok(())
}

/// A caching archive reads a small file once, and of other files only the parts that it has not
/// cached. Damage in those parts is detected.
pub async fn files_are_cached(ports: &Stores) -> Result<()> {
    let archive = ports.archive.with_cache(4 << 20);
    archive.put("few.parquet", numbers(35, 10)).await?;
    assert_eq!(read(&archive, "few.parquet", &[3]).await?.len(), 5);
    archive.delete("few.parquet").await?;
    assert_eq!(read(&archive, "few.parquet", &[0, 1]).await?.len(), 20);
    let refused = read(&ports.archive, "few.parquet", &[0]).await;
    assert!(refused.is_err(), "it is deleted for others");

    let many = numbers(200_000, 50_000);
    assert!(many.len() > 1_200_000, "more than one read");
    archive.put("many.parquet", many.clone()).await?;
    for groups in [[0, 3], [3, 1]] {
        let rows = groups
            .iter()
            .flat_map(|group| group * 50_000..(group + 1) * 50_000);
        let expected: Vec<i64> = rows.map(|row| number(row as u64)).collect();
        assert_eq!(read(&archive, "many.parquet", &groups).await?, expected);
    }
    let mut damaged = many.to_vec();
    damaged[1_000] ^= 1;
    archive.put("many.parquet", damaged.into()).await?;
    let refused = read(&archive, "many.parquet", &[0]).await;
    assert!(
        matches!(refused, Err(Error::DamagedFile { .. })),
        "{refused:?}"
    );
    Ok(())
}
