//! Asking over HTTP and comparing each answer with the recount at the answer's own position.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use schemas::clock::Clock;
use serde_json::Value;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::client::Client;
use super::findings::Findings;
use super::ledger::Ledger;
use super::producer::Pending;
use super::question::{Form, Question};
use super::recount::{Answer, Key, answer};
use crate::installation::Installation;
use crate::roles::{BatchWatch, sleep};

/// Questions between two looks at the time.
const QUESTIONS_PER_STEP: usize = 8;
/// Questions about everything at the end, beside the totals of owners and tracks.
const QUESTIONS_AT_THE_END: usize = 300;
/// Owners, and tracks, whose totals are asked for at the end, at most.
const TOTALS_AT_THE_END: usize = 150;
/// How long the speed layer may take to catch up at the end.
const CATCH_UP: Duration = Duration::from_secs(60);
const SHARE_ERROR_MAX: f64 = 1e-9;
/// Asks and compares.
#[derive(Debug)]
pub(super) struct Verifier {
    client: Client,
    ledger: Ledger,
    clock: Arc<dyn Clock>,
    rng: StdRng,
    findings: Findings,
}

impl Verifier {
    /// A verifier of what is served. It must be made before the first line is given to the log.
    pub(super) async fn new(
        installation: &Installation,
        client: Client,
        pending: &Arc<Pending>,
        seed: u64,
    ) -> anyhow::Result<Self> {
        let log = Arc::clone(&installation.stores().log);
        Ok(Self {
            client,
            ledger: Ledger::new(log, Arc::clone(pending)).await?,
            clock: Arc::clone(installation.clock()),
            rng: StdRng::seed_from_u64(seed),
            findings: Findings::default(),
        })
    }

    /// What was found so far.
    pub(super) fn findings(&self) -> Findings {
        let mut findings = self.findings.clone();
        for fault in self.ledger.faults() {
            findings.differs(fault);
        }
        findings
    }

    /// Asks some questions about what is in the log now.
    pub(super) async fn ask_some(&mut self, watch: &BatchWatch) -> anyhow::Result<()> {
        self.ledger.read_all().await?;
        for _ in 0..QUESTIONS_PER_STEP {
            let place = usize::try_from(self.rng.random::<u32>())?;
            let now = self.clock.now_ms().div_euclid(1_000);
            let Some(event) = self.ledger.pick(place) else {
                tokio::time::sleep(Duration::from_millis(100)).await;
                return Ok(());
            };
            let question = Question::about(event, now, &mut self.rng)?;
            self.ask(&question, watch).await?;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
        Ok(())
    }

    /// Waits until everything was counted, then asks about all owners and tracks, and much more.
    pub(super) async fn ask_everything(
        &mut self,
        watch: &BatchWatch,
        end: &CancellationToken,
    ) -> anyhow::Result<()> {
        let mut ends = self.ledger.read_all().await?;
        let (mut owners, mut tracks) = (BTreeSet::new(), BTreeSet::new());
        for event in self.ledger.below(&ends) {
            owners.insert(event.owner);
            tracks.insert(event.track);
        }
        let caught_up = Question::all_time(owners.first().copied().or(Some(1)), None);
        let begun = Instant::now();
        while self.ask(&caught_up, watch).await? != ends {
            if begun.elapsed() > CATCH_UP {
                self.findings
                    .differs(format!("the speed layer has not reached {ends:?}"));
                break;
            }
            if !sleep(Duration::from_millis(50), end).await {
                return Ok(());
            }
            // What was on its way when the traffic ended may have come since.
            ends = self.ledger.read_all().await?;
        }
        let of_owners = owners.iter().take(TOTALS_AT_THE_END);
        let of_tracks = tracks.iter().take(TOTALS_AT_THE_END);
        let totals = of_owners
            .map(|owner| Question::all_time(Some(*owner), None))
            .chain(of_tracks.map(|track| Question::all_time(None, Some(*track))));
        for question in totals {
            self.ask(&question, watch).await?;
        }
        for _ in 0..QUESTIONS_AT_THE_END / QUESTIONS_PER_STEP {
            self.ask_some(watch).await?;
        }
        Ok(())
    }

    /// Asks one question and compares the answer; answers the position that it counts up to.
    async fn ask(&mut self, question: &Question, watch: &BatchWatch) -> anyhow::Result<Vec<i64>> {
        let before = watch.is_under_way();
        let (status, body) = self
            .client
            .whole(question.path(), &question.parameters())
            .await?;
        let said = format!("{} {:?}", question.path(), question.parameters());
        let position = position_of(&body);
        let Some(position) = position.filter(|_| status == 200) else {
            self.findings
                .differs(format!("{said}: status {status}: {body}"));
            return Ok(Vec::new());
        };
        self.ledger.read_to(&position).await?;
        let expected = answer(question, self.ledger.below(&position))?;
        if let Err(difference) = compare(question, &expected, &body) {
            self.findings
                .differs(format!("{said} at {position:?}: {difference}"));
        }
        self.findings.compared(before || watch.is_under_way());
        Ok(position)
    }
}

fn position_of(body: &Value) -> Option<Vec<i64>> {
    body.pointer("/provenance/position/plays")?
        .as_array()?
        .iter()
        .map(Value::as_i64)
        .collect()
}

/// Compares an answer with what it should be.
fn compare(question: &Question, expected: &Answer, body: &Value) -> Result<(), String> {
    let found =
        read(question, body).ok_or_else(|| format!("the answer has another shape: {body}"))?;
    if found != *expected {
        return Err(format!("served {found:?}, recounted {expected:?}"));
    }
    match expected {
        Answer::Total(count, Some(previous)) => {
            let change = (*previous != 0).then(|| as_f64(count - previous) / as_f64(*previous));
            same_ratio("change", change, body.get("change"))
        }
        Answer::Breakdown(rows, total) => {
            let served = body.get("rows").and_then(Value::as_array);
            for ((key, count), row) in rows.iter().zip(served.into_iter().flatten()) {
                let share = (*total != 0).then(|| as_f64(*count) / as_f64(*total));
                same_ratio("share", share, row.get("share"))
                    .map_err(|error| format!("{key:?}: {error}"))?;
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

fn same_ratio(name: &str, expected: Option<f64>, found: Option<&Value>) -> Result<(), String> {
    let found = found.and_then(Value::as_f64);
    let same = match (expected, found) {
        (Some(expected), Some(found)) => {
            (expected - found).abs() <= SHARE_ERROR_MAX * expected.abs().max(1.0)
        }
        (None, None) => true,
        _ => false,
    };
    if same {
        return Ok(());
    }
    Err(format!("{name}: served {found:?}, recounted {expected:?}"))
}

/// The answer as it was served.
fn read(question: &Question, body: &Value) -> Option<Answer> {
    Some(match question.form {
        Form::Total { compared } => {
            let previous = if compared {
                Some(body.get("previous")?.as_i64()?)
            } else {
                None
            };
            Answer::Total(body.get("count")?.as_i64()?, previous)
        }
        Form::Series(_) => {
            let points = body.get("points")?.as_array()?.iter().map(|point| {
                let at: Timestamp = point.get("at")?.as_str()?.parse().ok()?;
                Some((at.as_second(), point.get("count")?.as_i64()?))
            });
            Answer::Series(points.collect::<Option<_>>()?)
        }
        Form::Breakdown(_) => {
            let mut sum = 0;
            let rows = body.get("rows")?.as_array()?.iter().map(|row| {
                let key = match row.get("key")? {
                    Value::Null => Key::Missing,
                    Value::Number(id) => Key::Int(id.as_i64()?),
                    Value::String(text) => Key::Text(text.as_str().into()),
                    _ => return None,
                };
                let count = row.get("count")?.as_i64()?;
                sum += count;
                Some((key, count))
            });
            let rows = rows.collect::<Option<Vec<_>>>()?;
            let total = body.get("total").and_then(Value::as_i64).unwrap_or(sum);
            Answer::Breakdown(rows, total)
        }
    })
}

fn as_f64(n: i64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a ratio")]
    {
        n as f64
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::demo::question::By;

    #[test]
    fn a_wrong_answer_is_told() {
        let mut question = Question::all_time(Some(1), None);
        let total = Answer::Total(3, None);
        assert!(compare(&question, &total, &json!({"count": 3})).is_ok());
        for wrong in [json!({"count": 4}), json!({"count": "3"}), json!({})] {
            assert!(compare(&question, &total, &wrong).is_err(), "{wrong}");
        }
        question.form = Form::Total { compared: true };
        let total = Answer::Total(3, Some(2));
        let served = |change: f64| json!({"count": 3, "previous": 2, "change": change});
        assert!(compare(&question, &total, &served(0.5)).is_ok());
        assert!(compare(&question, &total, &served(0.6)).is_err());
        question.form = Form::Breakdown(By::App);
        let rows = Answer::Breakdown(vec![(Key::Int(7), 3), (Key::Missing, 1)], 4);
        let served = |key: Value, share: f64| {
            json!({"rows": [
                {"key": key, "count": 3, "share": share},
                {"key": null, "count": 1, "share": 0.25},
            ]})
        };
        assert!(compare(&question, &rows, &served(json!(7), 0.75)).is_ok());
        assert!(compare(&question, &rows, &served(json!("7"), 0.75)).is_err());
        assert!(compare(&question, &rows, &served(json!(7), 0.7)).is_err());
    }
}
