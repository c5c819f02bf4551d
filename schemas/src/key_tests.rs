//! Tests of the key encoding: order, round trips, and errors.

use arrow::array::{Int64Array, StringArray, TimestampMillisecondArray};
use proptest::prelude::*;

use super::*;
use crate::json_value::{from_column, from_key};

fn shape() -> KeyShape {
    let column = |name: &str, kind, nullable| KeyColumn {
        name: name.to_owned(),
        kind,
        nullable,
    };
    KeyShape(vec![
        column("id", KeyKind::Int, false),
        column("bucket", KeyKind::Time, false),
        column("referrer", KeyKind::Text, true),
        column("app_id", KeyKind::Int, true),
    ])
}

type Row = (i64, i64, Option<String>, Option<i64>);

fn columns(rows: &[Row]) -> Vec<ArrayRef> {
    vec![
        Arc::new(rows.iter().map(|r| r.0).collect::<Int64Array>()),
        Arc::new(
            TimestampMillisecondArray::from_iter_values(rows.iter().map(|r| r.1 * 1000))
                .with_timezone("UTC"),
        ),
        Arc::new(rows.iter().map(|r| r.2.clone()).collect::<StringArray>()),
        Arc::new(rows.iter().map(|r| r.3).collect::<Int64Array>()),
    ]
}

fn row() -> impl Strategy<Value = Row> {
    let id = prop_oneof![any::<i64>(), -3_i64..3];
    let text = prop_oneof![
        Just(String::new()),
        Just("\0".to_owned()),
        Just("\0\u{1}".to_owned()),
        Just("a\0b".to_owned()),
        "[a-c]{0,3}",
        ".*"
    ];
    (
        id,
        -4_000_000_000_i64..4_000_000_000,
        proptest::option::of(text),
        proptest::option::of(prop_oneof![any::<i64>(), -3_i64..3]),
    )
}

proptest! {
    /// Encoded keys compare like rows and decode to the same values.
    #[test]
    fn keys_sort_like_rows_and_round_trip(rows in proptest::collection::vec(row(), 1..20)) {
        let keys = shape().encode(&columns(&rows)).unwrap();
        for (i, a) in rows.iter().enumerate() {
            for (j, b) in rows.iter().enumerate() {
                prop_assert_eq!(keys.value(i).cmp(keys.value(j)), a.cmp(b));
            }
        }
        let decoded = shape().decode(keys.iter().flatten()).unwrap();
        for (actual, expected) in decoded.iter().zip(columns(&rows)) {
            prop_assert_eq!(actual, &expected);
        }
    }

    /// `is_key` accepts exactly the bytes that decode, also after a change of any byte.
    #[test]
    fn is_key_agrees_with_decode(
        row in row(),
        (index, byte) in (0_usize..40, any::<u8>()),
        bytes in proptest::collection::vec(any::<u8>(), 0..40),
    ) {
        let key = shape().encode(&columns(std::slice::from_ref(&row))).unwrap().value(0).to_vec();
        prop_assert!(shape().is_key(&key));
        let times = KeyShape(shape().0.split_off(1));
        prop_assert_eq!(times.decode_first_time(&key[8..]), Some(row.1));
        prop_assert_eq!(shape().decode_first_time(&key), None);
        let mut changed = key.clone();
        if let Some(changed_byte) = changed.get_mut(index) {
            *changed_byte = byte;
        }
        let short = key[..index.min(key.len())].to_vec();
        for bytes in [changed, short, [key, vec![byte]].concat(), bytes] {
            let decodes = shape().decode(std::iter::once(bytes.as_slice())).is_ok();
            prop_assert_eq!(shape().is_key(&bytes), decodes, "{:?}", bytes);
        }
    }

    /// Selected columns decode to the same values as all columns.
    #[test]
    fn decodes_selected_columns(
        rows in proptest::collection::vec(row(), 1..20),
        selected in proptest::sample::subsequence(vec![0_usize, 1, 2, 3], 0..=4),
    ) {
        let keys = shape().encode(&columns(&rows)).unwrap();
        let all = shape().decode(keys.iter().flatten()).unwrap();
        let selected_columns = shape().decode_columns(keys.iter().flatten(), &selected).unwrap();
        prop_assert_eq!(selected_columns.len(), all.len());
        for (index, (actual, expected)) in selected_columns.iter().zip(&all).enumerate() {
            prop_assert_eq!(actual.as_ref(), selected.contains(&index).then_some(expected));
        }
    }

    /// A list of values encodes like the row, a shorter list to a prefix.
    #[test]
    fn values_encode_like_rows_and_prefixes(row in row(), prefix_columns in 0_usize..4) {
        let mut values = vec![KeyValue::Int(row.0), KeyValue::Time(row.1)];
        values.push(row.2.clone().map_or(KeyValue::Null, KeyValue::Text));
        values.push(row.3.map_or(KeyValue::Null, KeyValue::Int));
        let full_key = shape().encode_values(&values).unwrap();
        let keys = shape().encode(&columns(std::slice::from_ref(&row))).unwrap();
        prop_assert_eq!(&full_key[..], keys.value(0));
        let prefix = shape().encode_values(&values[..prefix_columns]).unwrap();
        prop_assert!(full_key.starts_with(&prefix));
        let columns = shape().decode(std::iter::once(&full_key[..])).unwrap();
        let json_of_columns: Vec<_> = columns.iter().map(|column| from_column(column, 0)).collect();
        let json_of_values: Vec<_> = values.iter().map(from_key).collect();
        prop_assert_eq!(json_of_values, json_of_columns);
        prop_assert_eq!(shape().decode_values(&full_key), Ok(values));
    }

    /// A key with replaced columns equals a key that was encoded with nulls.
    #[test]
    fn replaces_last_columns_by_null(row in row(), first in 2_usize..6) {
        let mut nulls = row.clone();
        if first <= 2 {
            nulls.2 = None;
        }
        if first <= 3 {
            nulls.3 = None;
        }
        let [full_key, nulls] = [row, nulls].map(|row| {
            let key = shape().encode(&columns(&[row])).unwrap();
            key.value(0).to_vec()
        });
        prop_assert_eq!(shape().with_nulls_from(&full_key, first).unwrap(), nulls);
        prop_assert!(shape().with_nulls_from(&full_key, 1).is_err());
    }

    /// Arbitrary bytes are an error or a key, without a panic.
    #[test]
    fn damaged_bytes_do_not_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..40),
        first in 0_usize..6,
    ) {
        drop(shape().with_nulls_from(&bytes, first));
        let selected_columns = shape().decode_columns(std::iter::once(&bytes[..]), &[3]);
        let all = shape().decode(std::iter::once(&bytes[..]));
        prop_assert!(all.is_err() || selected_columns.is_ok());
        prop_assert_eq!(shape().decode_values(&bytes).err(), all.err());
    }
}

#[test]
fn errors_name_the_column() {
    let rows = [(1, 2, None, None)];
    let mut wrong = columns(&rows);
    wrong.swap(0, 2);
    let message = shape().encode(&wrong).unwrap_err().to_string();
    assert!(
        message.contains("id") && message.contains("Int64"),
        "{message}"
    );
    assert_eq!(
        shape().encode(&wrong[..2]).unwrap_err(),
        KeyError::Columns {
            expected: 4,
            actual: 2
        }
    );
    assert_eq!(
        shape().encode_values(&[KeyValue::Null]).unwrap_err(),
        KeyError::Null("id".to_owned())
    );
}

#[test]
fn rejects_fractions_of_seconds() {
    let mut columns_with_fraction = columns(&[(1, 2, None, None)]);
    columns_with_fraction[1] =
        Arc::new(TimestampMillisecondArray::from(vec![1500]).with_timezone("UTC"));
    assert!(matches!(
        shape().encode(&columns_with_fraction),
        Err(KeyError::Fraction { millis: 1500, .. })
    ));
}

#[test]
fn finds_integers_in_damaged_keys() {
    let mut bytes = shape()
        .encode_values(&[
            KeyValue::Int(-7),
            KeyValue::Time(60),
            KeyValue::Null,
            KeyValue::Int(42),
        ])
        .unwrap();
    bytes.insert(0, 3);
    bytes.pop();
    bytes.extend_from_slice(&bytes.clone());
    assert!(!shape().is_key(&bytes));
    assert!(find_possible_ints(&bytes).any(|n| n == -7));
    assert_eq!(find_possible_ints(&bytes[..7]).count(), 0);
}
