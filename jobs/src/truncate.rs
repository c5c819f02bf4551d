//! A fast `date_trunc` for the common case: a UTC time to its hour, day or month. The engine uses a
//! calendar for each value; this uses arithmetic. Other calls go to the engine's function.

use std::sync::Arc;

use arrow::array::AsArray;
use arrow::datatypes::{DataType, FieldRef, TimeUnit, TimestampMillisecondType};
use datafusion::common::{Result, ScalarValue};
use datafusion::functions::datetime::date_trunc;
use datafusion::logical_expr::sort_properties::{ExprProperties, SortProperties};
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
};
use schemas::time::BucketWidth;

/// The engine's function with the fast case.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Truncate {
    engine: Arc<ScalarUDF>,
}

/// Creates the function that replaces the engine's.
pub(crate) fn date_trunc_function() -> ScalarUDF {
    ScalarUDF::new_from_impl(Truncate {
        engine: date_trunc(),
    })
}

/// Returns the bucket width of a unit. "quarter" is excluded, because it is the quarter of a year
/// here.
pub(crate) fn width_of_unit(unit: &str) -> Option<BucketWidth> {
    match unit {
        "hour" => Some(BucketWidth::Hour),
        "day" => Some(BucketWidth::Day),
        "month" => Some(BucketWidth::Month),
        _ => None,
    }
}

impl Truncate {
    /// Truncates UTC times without the engine. Returns `None` if the fast case does not apply.
    fn truncate_utc(args: &[ColumnarValue]) -> Option<ColumnarValue> {
        let [
            ColumnarValue::Scalar(ScalarValue::Utf8(Some(unit))),
            ColumnarValue::Array(times),
        ] = args
        else {
            return None;
        };
        let width = width_of_unit(unit)?;
        let DataType::Timestamp(TimeUnit::Millisecond, Some(zone)) = times.data_type() else {
            return None;
        };
        if zone.as_ref() != "UTC" {
            return None;
        }
        let millis = times.as_primitive::<TimestampMillisecondType>();
        let floor = |at_ms: i64| width.floor(at_ms.div_euclid(1000)).saturating_mul(1000);
        let floored = millis.unary::<_, TimestampMillisecondType>(floor);
        let floored = floored.with_timezone(Arc::clone(zone));
        Some(ColumnarValue::Array(Arc::new(floored)))
    }
}

impl ScalarUDFImpl for Truncate {
    fn name(&self) -> &str {
        self.engine.name()
    }

    fn aliases(&self) -> &[String] {
        self.engine.aliases()
    }

    fn signature(&self) -> &Signature {
        self.engine.signature()
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        self.engine.return_type(types)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        self.engine.return_field_from_args(args)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        match Self::truncate_utc(&args.args) {
            Some(truncated) => Ok(truncated),
            None => self.engine.invoke_with_args(args),
        }
    }

    fn output_ordering(&self, input: &[ExprProperties]) -> Result<SortProperties> {
        self.engine.output_ordering(input)
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{Array, ArrayRef, RecordBatch, TimestampMillisecondArray};
    use datafusion::prelude::SessionContext;
    use futures::FutureExt;
    use proptest::prelude::*;

    use super::*;

    /// Evaluates an expression over times.
    fn evaluate(context: &SessionContext, times: &ArrayRef, expression: &str) -> ArrayRef {
        let rows = RecordBatch::try_from_iter([("at", Arc::clone(times))]).unwrap();
        context.deregister_table("t").unwrap();
        context.register_batch("t", rows).unwrap();
        let query = format!("SELECT {expression} AS at FROM t");
        let result = async { context.sql(&query).await.unwrap().collect().await.unwrap() };
        let batches = result.now_or_never().expect("the query never waits");
        let [rows] = batches.as_slice() else {
            panic!("{batches:?}");
        };
        Arc::clone(rows.column(0))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]

        // The engine supports the years 1678 to 2261.
        #[test]
        fn results_equal_those_of_the_engine(
            millis in prop::collection::vec(
                prop::option::of(-9_214_560_000_000_i64..=9_183_110_400_000), 1..50
            )
        ) {
            let (engine, ours) = (SessionContext::new(), SessionContext::new());
            ours.register_udf(date_trunc_function());
            let times = TimestampMillisecondArray::from(millis);
            for zone in [None, Some("UTC"), Some("Europe/Berlin"), Some("+00:00")] {
                let times: ArrayRef = Arc::new(times.clone().with_timezone_opt(zone));
                for unit in ["minute", "hour", "day", "week", "month", "quarter", "Month"] {
                    let expression = format!("date_trunc('{unit}', at)");
                    let expected = evaluate(&engine, &times, &expression);
                    let actual = evaluate(&ours, &times, &expression);
                    prop_assert_eq!(actual.data_type(), expected.data_type());
                    prop_assert_eq!(&actual, &expected, "{} {:?}", unit, zone);
                }
            }
        }
    }
}
