//! Figures of several rounds, as a table.

use super::{Measurement, OURS};

/// Measurements by engine and round.
pub(crate) struct Rounds {
    /// Backstitch is the first.
    engines: Vec<(String, Vec<Measurement>)>,
}

impl Rounds {
    pub(crate) fn new<'a>(references: impl Iterator<Item = &'a str>) -> Self {
        let engines = std::iter::once(OURS).chain(references);
        Self {
            engines: engines.map(|name| (name.to_owned(), Vec::new())).collect(),
        }
    }

    pub(crate) fn add(&mut self, engine: usize, measured: Measurement) {
        let (name, rounds) = self.engines.get_mut(engine).expect("an engine");
        eprintln!(
            "{name}: {:.1} s, {:.2} GB",
            measured.seconds,
            gigabytes(&measured)
        );
        rounds.push(measured);
    }

    /// Formats a Markdown table. A ratio is the median of the ratios of single rounds.
    pub(crate) fn table(&self, title: &str, checked: &str) -> String {
        let mut text = format!(
            "{title}. {checked}\n\n\
             | engine | seconds (of each round) | ours takes | peak memory, GB | ours takes |\n|---|---|---|---|---|\n"
        );
        let ours = self.engines.first().map_or(&[][..], |(_, rounds)| rounds);
        for (name, rounds) in &self.engines {
            let seconds = |measured: &Measurement| measured.seconds;
            let by_round: Vec<String> =
                rounds.iter().map(|m| format!("{:.1}", m.seconds)).collect();
            let version = rounds.first().map_or("", |measured| &measured.version);
            text += &format!(
                "| {name} {version} | {:.1} ({}) | {:.2} | {:.2} | {:.2} |\n",
                median(rounds.iter().map(seconds)),
                by_round.join(", "),
                ratio(ours, rounds, seconds),
                median(rounds.iter().map(gigabytes)),
                ratio(ours, rounds, gigabytes),
            );
        }
        text
    }
}

#[expect(clippy::cast_precision_loss, reason = "a figure for people")]
fn gigabytes(measured: &Measurement) -> f64 {
    measured.peak_bytes as f64 / 1e9
}

/// Returns the median ratio of Backstitch's figure to another engine's in the same round.
fn ratio(
    ours: &[Measurement],
    others: &[Measurement],
    figure: impl Fn(&Measurement) -> f64,
) -> f64 {
    let pairs = ours.iter().zip(others);
    median(pairs.map(|(ours, other)| figure(ours) / figure(other)))
}

/// Returns the median; of an even number of values, the mean of the middle two.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
    let (low, high) = (values.len().saturating_sub(1) / 2, values.len() / 2);
    f64::midpoint(middle(low), middle(high))
}
