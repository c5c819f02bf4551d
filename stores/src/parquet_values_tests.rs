use std::io::Write as _;

use arrow::array::{
    Decimal256Array, DictionaryArray, Float32Array, Int8Array, StringArray, TimestampSecondArray,
    UInt64Array,
};
use arrow::datatypes::{Int32Type, i256};
use parquet::arrow::ArrowWriter;
use parquet::data_type::{ByteArray, ByteArrayType, Int96, Int96Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

use super::*;

fn written(columns: Vec<(&str, ArrayRef)>) -> File {
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let file = tempfile::tempfile().unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.into_inner().unwrap()
}

/// The values of a column, in debug format.
fn values(file: File, name: &str) -> Vec<String> {
    let reader = ParquetInput::open(file).unwrap().read(&[name]).unwrap();
    let rows = reader.map(|rows| {
        let rows = rows.unwrap();
        let values = (0..rows.count()).map(|row| format!("{:?}", rows.value(0, row)));
        values.collect::<Vec<_>>()
    });
    rows.flatten().collect()
}

fn int96(day: i64, nanos: i64) -> Int96 {
    let bytes = nanos.to_le_bytes();
    let word = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().unwrap());
    let mut value = Int96::new();
    let day = u32::try_from(day + 2_440_588).unwrap();
    value.set_data(word(&bytes[..4]), word(&bytes[4..]), day);
    value
}

/// Annotated texts, including bytes that are not UTF-8.
const NOTED: [&str; 5] = [
    r#"Text("a")"#,
    "Bytes([99, 97, 102, 233])",
    r#"Text("b")"#,
    "Bytes([255])",
    r#"Text("c")"#,
];

/// As Impala, Hive and older Spark write it: INT96, and texts without annotation; with and without
/// dictionaries, in several pages.
#[test]
fn int96_and_texts_without_annotation_are_read() {
    let schema =
        "message m { optional int96 at; optional binary text; required binary noted (UTF8); }";
    for has_dictionary in [true, false] {
        let schema = Arc::new(parse_message_type(schema).unwrap());
        let properties = WriterProperties::builder()
            .set_dictionary_enabled(has_dictionary)
            .set_data_page_row_count_limit(2)
            .set_write_batch_size(1)
            .build();
        let file = tempfile::tempfile().unwrap();
        let copy = file.try_clone().unwrap();
        let mut writer = SerializedFileWriter::new(file, schema, Arc::new(properties)).unwrap();
        let mut group = writer.next_row_group().unwrap();
        let times = [
            int96(0, 0),
            int96(-1, 86_399_999_999_999),
            // The year 9999, which does not fit nanoseconds of 64 bits.
            int96(2_932_896, 0),
            int96(2_932_896, 0),
        ];
        let mut column = group.next_column().unwrap().unwrap();
        let definitions = Some(&[1, 1, 0, 1, 1][..]);
        column
            .typed::<Int96Type>()
            .write_batch(&times, definitions, None)
            .unwrap();
        column.close().unwrap();
        let texts = ["a", "é", "", "\0"].map(ByteArray::from);
        let mut column = group.next_column().unwrap().unwrap();
        column
            .typed::<ByteArrayType>()
            .write_batch(&texts, definitions, None)
            .unwrap();
        column.close().unwrap();
        let noted = [&b"a"[..], b"caf\xe9", b"b", b"\xff", b"c"];
        let noted = noted.map(|bytes| ByteArray::from(bytes.to_vec()));
        let mut column = group.next_column().unwrap().unwrap();
        column
            .typed::<ByteArrayType>()
            .write_batch(&noted, None, None)
            .unwrap();
        column.close().unwrap();
        group.close().unwrap();
        writer.close().unwrap();
        let read = |name| values(copy.try_clone().unwrap(), name);
        let late = "Instant(253402214400000000000)";
        assert_eq!(
            read("at"),
            ["Instant(0)", "Instant(-1)", "Null", late, late]
        );
        assert_eq!(
            read("text"),
            [
                r#"Text("a")"#,
                r#"Text("é")"#,
                "Null",
                r#"Text("")"#,
                r#"Text("\0")"#
            ]
        );
        assert_eq!(read("noted"), NOTED);
    }
}

#[test]
fn reads_values_of_all_types() {
    let dictionary: DictionaryArray<Int32Type> = [Some("x"), None, Some("y")].into_iter().collect();
    let wide =
        Decimal256Array::from_iter_values([1, -25, 9_007_199_254_740_993_i64].map(i256::from));
    let wide = wide.with_precision_and_scale(60, 2).unwrap();
    let narrow = vec![Some(0.1_f32), None, Some(f32::NAN)];
    let columns: [(ArrayRef, [&str; 3]); 8] = [
        (
            Arc::new(dictionary),
            [r#"Text("x")"#, "Null", r#"Text("y")"#],
        ),
        (
            Arc::new(wide),
            [
                r#"Decimal("0.01")"#,
                r#"Decimal("-0.25")"#,
                r#"Decimal("90071992547409.93")"#,
            ],
        ),
        (
            Arc::new(Float32Array::from(narrow)),
            ["Number(0.10000000149011612)", "Null", "Number(NaN)"],
        ),
        (
            Arc::new(Int8Array::from(vec![-1, 0, 1])),
            ["Int(-1)", "Int(0)", "Int(1)"],
        ),
        (
            Arc::new(UInt64Array::from(vec![0, 1, u64::MAX])),
            [
                "Unsigned(0)",
                "Unsigned(1)",
                "Unsigned(18446744073709551615)",
            ],
        ),
        (
            Arc::new(TimestampSecondArray::from(vec![0, -1, i64::MAX])),
            [
                "Instant(0)",
                "Instant(-1000000000)",
                "Instant(9223372036854775807000000000)",
            ],
        ),
        (
            Arc::new(arrow::array::Date32Array::from(vec![0, -1, i32::MAX])),
            [
                "Instant(0)",
                "Instant(-86400000000000)",
                "Instant(185542587100800000000000)",
            ],
        ),
        (Arc::new(arrow::array::NullArray::new(3)), ["Null"; 3]),
    ];
    for (column, expected) in columns {
        let other: ArrayRef = Arc::new(StringArray::from(vec!["other"; 3]));
        let file = written(vec![("other", other), ("value", column)]);
        assert_eq!(values(file, "value"), expected);
    }
}

#[test]
fn rejects_files_that_are_not_parquet() {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(b"PAR1 but not really").unwrap();
    ParquetInput::open(file).unwrap_err();
    let column: ArrayRef = Arc::new(StringArray::from(vec!["a"]));
    let input = ParquetInput::open(written(vec![("a", column)])).unwrap();
    assert!(input.read(&["b"]).is_err());
}
