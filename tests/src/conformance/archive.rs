//! The laws of the archive port.

use std::sync::Arc;

use arrow::array::{AsArray, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Int64Type, Schema};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;
use stores::archive::Created;
use stores::{Result, Stores};

/// What is put is there, until it is replaced or deleted; what is not there is nothing, and no
/// error.
pub async fn objects_come_back(ports: &Stores) -> Result<()> {
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

/// Of several that create the same object one does, and the object is that one's, whole.
pub async fn one_creates(one: &Stores, other: &Stores) -> Result<()> {
    let create = async |ports: &Stores, text: &'static str| {
        ports.archive.create("manifests/1", text.into()).await
    };
    let (first, second, third) = tokio::join!(
        create(one, "one"),
        create(other, "other"),
        create(one, "third")
    );
    let made = [("one", first?), ("other", second?), ("third", third?)];
    let winners: Vec<&str> = made
        .iter()
        .filter(|(_, created)| *created == Created::New)
        .map(|(text, _)| *text)
        .collect();
    assert_eq!(winners.len(), 1, "{made:?}");
    let stored = other.archive.get("manifests/1").await?;
    assert_eq!(stored.as_deref(), Some(winners[0].as_bytes()));
    Ok(())
}

/// A folder's objects are listed in their order, whatever lies beside it.
pub async fn folders_are_listed(ports: &Stores) -> Result<()> {
    let archive = &ports.archive;
    assert!(archive.list("a").await?.is_empty());
    for path in ["a/2", "a/10", "a/b/1", "ab/1", "b/1"] {
        archive.put(path, "x".into()).await?;
    }
    assert_eq!(archive.list("a").await?, ["a/10", "a/2", "a/b/1"]);
    Ok(())
}

/// The row groups that are named come back, in the order in which they are named.
pub async fn row_groups_come_back(ports: &Stores) -> Result<()> {
    use futures::TryStreamExt;
    let schema = Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, false)]));
    let properties = WriterProperties::builder()
        .set_max_row_group_row_count(Some(10))
        .build();
    let mut writer = ArrowWriter::try_new(Vec::new(), Arc::clone(&schema), Some(properties))
        .expect("the schema can be written");
    let numbers = Int64Array::from_iter_values(0..35);
    let batch = RecordBatch::try_new(schema, vec![Arc::new(numbers)]).expect("one column");
    writer.write(&batch).expect("rows can be written");
    let file = stores::parquet_file::finish(writer).expect("the file can be ended");
    ports.archive.put("numbers.parquet", file.clone()).await?;
    let batches: Vec<RecordBatch> = ports
        .archive
        .rows("numbers.parquet", vec![2, 0], 4)
        .await?
        .try_collect()
        .await?;
    let found: Vec<i64> = batches
        .iter()
        .flat_map(|batch| {
            batch
                .column(0)
                .as_primitive::<Int64Type>()
                .values()
                .to_vec()
        })
        .collect();
    assert_eq!(found, (20..30).chain(0..10).collect::<Vec<i64>>());
    assert!(batches.iter().all(|batch| batch.num_rows() <= 4));
    assert!(
        ports
            .archive
            .rows("missing.parquet", vec![0], 4)
            .await
            .is_err()
    );
    Ok(())
}
