use std::cmp::Ordering;

use arrow::array::{Float64Array, Int64Array, StringArray};
use arrow::datatypes::{Field, Fields};
use arrow::util::display::array_value_to_string;
use datafusion::prelude::SessionContext;
use proptest::prelude::*;

use super::*;

/// A row: with or without a struct, three fields of it.
type Row = Option<(Option<i64>, Option<f64>, Option<String>)>;

fn fields() -> Fields {
    Fields::from(vec![
        Field::new("int", DataType::Int64, true),
        Field::new("float", DataType::Float64, true),
        Field::new("text", DataType::Utf8, true),
    ])
}

fn array(rows: &[Row]) -> ArrayRef {
    let values = |row: &Row| row.clone().unwrap_or_default();
    let ints: Int64Array = rows.iter().map(|row| values(row).0).collect();
    let floats: Float64Array = rows.iter().map(|row| values(row).1).collect();
    let texts: StringArray = rows.iter().map(|row| values(row).2).collect();
    let columns: Vec<ArrayRef> = vec![Arc::new(ints), Arc::new(floats), Arc::new(texts)];
    let nulls = rows.iter().map(Option::is_some).collect::<Vec<_>>().into();
    Arc::new(StructArray::new(fields(), columns, Some(nulls)))
}

fn nulls_last<T>(a: &Option<T>, b: &Option<T>, cmp: impl Fn(&T, &T) -> Ordering) -> Ordering {
    match (a, b) {
        (Some(a), Some(b)) => cmp(a, b),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => Ordering::Equal,
    }
}

fn order(a: &Row, b: &Row) -> Ordering {
    nulls_last(a, b, |a, b| {
        nulls_last(&a.0, &b.0, Ord::cmp)
            .then_with(|| nulls_last(&a.1, &b.1, f64::total_cmp))
            .then_with(|| nulls_last(&a.2, &b.2, Ord::cmp))
    })
}

fn format_rows(array: &dyn Array) -> Vec<String> {
    (0..array.len())
        .map(|row| array_value_to_string(array, row).unwrap())
        .collect()
}

fn row() -> impl Strategy<Value = Row> {
    let ints = prop_oneof![
        Just(i64::MIN),
        Just(i64::MAX),
        Just(-1),
        Just(0),
        Just(1),
        any::<i64>()
    ];
    let floats = prop_oneof![
        Just(0.0),
        Just(-0.0),
        Just(f64::INFINITY),
        Just(f64::NAN),
        Just(-f64::MAX),
        any::<f64>()
    ];
    let fields = (
        proptest::option::of(ints),
        proptest::option::of(floats),
        proptest::option::of("[ab]{0,2}"),
    );
    proptest::option::weighted(0.9, fields)
}

proptest! {
    /// Batches, some of them as states of another one, and groups that are taken out on the way.
    #[test]
    fn the_smallest_row_of_each_group_remains(
        batches in proptest::collection::vec(
            proptest::collection::vec((row(), 0..5_usize, any::<bool>()), 0..20), 1..6),
        methods in proptest::collection::vec(0..4_u8, 6),
    ) {
        let data_type = DataType::Struct(fields());
        let mut accumulator = MinRows::new(&data_type);
        let mut expected: Vec<Row> = vec![None; 5];
        for (batch, method) in batches.iter().zip(methods) {
            let rows: Vec<Row> = batch.iter().map(|(row, ..)| row.clone()).collect();
            let groups: Vec<usize> = batch.iter().map(|(_, group, _)| *group).collect();
            let filter: BooleanArray = batch.iter().map(|(.., passes)| Some(*passes)).collect();
            let filter = (method == 1).then_some(filter);
            for ((row, group), passes) in rows.iter().zip(&groups).zip(batch) {
                if (filter.is_none() || passes.2) && order(row, &expected[*group]).is_lt() {
                    expected[*group].clone_from(row);
                }
            }
            if method == 2 {
                let mut other = MinRows::new(&data_type);
                other.update_batch(&[array(&rows)], &groups, None, 5).unwrap();
                let state = other.state(EmitTo::All).unwrap();
                accumulator.merge_batch(&state, &[0, 1, 2, 3, 4], 5).unwrap();
            } else {
                accumulator.update_batch(&[array(&rows)], &groups, filter.as_ref(), 5).unwrap();
            }
            if method == 3 {
                accumulator.compact().unwrap();
            }
        }
        let (first, rest) = expected.split_at(2);
        prop_assert_eq!(
            format_rows(&accumulator.evaluate(EmitTo::First(2)).unwrap()), format_rows(&array(first)));
        prop_assert_eq!(format_rows(&accumulator.evaluate(EmitTo::All).unwrap()), format_rows(&array(rest)));
        prop_assert_eq!(accumulator.arrays.len(), 1);
    }
}

#[test]
fn superseded_rows_are_dropped() {
    let mut accumulator = MinRows::new(&DataType::Struct(fields()));
    let rows: i64 = 50_000;
    for batch in (0..20).rev() {
        let rows: Vec<Row> = (0..rows)
            .map(|row| Some((Some(row + batch), None, None)))
            .collect();
        let groups: Vec<usize> = (0..rows.len()).map(|row| row % 10).collect();
        accumulator
            .update_batch(&[array(&rows)], &groups, None, 10)
            .unwrap();
        assert!(
            accumulator.rows <= 20 + SPARE_ROWS_MAX,
            "{}",
            accumulator.rows
        );
    }
    let least = accumulator.evaluate(EmitTo::All).unwrap();
    assert_eq!(
        least
            .as_struct()
            .column(0)
            .as_primitive::<Int64Type>()
            .values(),
        &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    );
}

#[tokio::test]
async fn sql_uses_it_with_and_without_groups() {
    let context = crate::engine::create_session(Arc::default());
    let format_rows = async |context: &SessionContext, sql: &str| {
        let batches = context.sql(sql).await.unwrap().collect().await.unwrap();
        let batch = arrow::compute::concat_batches(&batches[0].schema(), &batches).unwrap();
        format_rows(batch.columns().last().unwrap())
    };
    let values = "(VALUES (1, 2, 'b'), (1, 1, 'c'), (2, 9, 'd'), (2, 9, 'a')) AS t(k, s, t)";
    let sql = format!("SELECT get_field(min(named_struct('s', s, 't', t)), 't') FROM {values}");
    assert_eq!(format_rows(&context, &sql).await, ["c"]);
    let sql = format!(
        "SELECT k, get_field(min(named_struct('s', s, 't', t)), 't') FROM {values} GROUP BY k ORDER BY k"
    );
    assert_eq!(format_rows(&context, &sql).await, ["c", "a"]);
    let sql = format!("SELECT min(named_struct('s', s)) FROM {values} WHERE k > 5");
    assert_eq!(format_rows(&context, &sql).await, [""]);
    let sql = format!("SELECT min(t) FROM {values}");
    assert_eq!(format_rows(&context, &sql).await, ["a"]);
}
