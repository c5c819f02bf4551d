//! Tests of mutants: rules of which one is broken.

use std::ops::Range;

use super::history::run_all;
use super::{EventCounts, Invariant, Violation};

/// Lists mutants of the real rules, each with an invariant and seeds. One of these histories must
/// violate the invariant; a test per mutant checks it. A mutant without seeds is redundant: it
/// violates nothing, because other rules imply the broken one.
macro_rules! mutants {
    ($list:ident, $run_history:ident, $real:expr;
    $($name:ident = $mutant:expr $(, $invariant:ident in $seeds:expr)?;)+) => {
        const $list: &[(&str, Rules)] = &[$((stringify!($name), $mutant)),+];
        $($(
            #[test]
            fn $name() {
                let invariant = simulation::Invariant::$invariant;
                simulation::assert_violates(invariant, $seeds, $run_history, $real, $mutant);
            }
        )?)+
    };
}
pub(crate) use mutants;

type RunHistory<R> = fn(u64, R) -> Result<EventCounts, Violation>;

/// Checks that the first violation of a mutant is one of the invariant. The same history must not
/// violate anything with the real rules.
pub(crate) fn assert_violates<R>(
    invariant: Invariant,
    seeds: Range<u64>,
    run_history: RunHistory<R>,
    real: R,
    mutant: R,
) where
    R: Copy,
{
    let violation = seeds
        .clone()
        .find_map(|seed| run_history(seed, mutant).err());
    let violation = violation.unwrap_or_else(|| panic!("no history of {seeds:?} needs the rule"));
    assert_eq!(violation.invariant, invariant, "{violation:?}");
    if let Err(violation) = run_history(violation.seed, real) {
        panic!("with the real rules: {violation:?}");
    }
}

/// Finds a violation of each of some rules, to get new seeds after a change of the simulation.
/// Returns one line for each rule.
pub(crate) fn find_violations<R: Copy + Sync>(
    seeds: &Range<u64>,
    rules: &[&[(&str, R)]],
    run_history: RunHistory<R>,
) -> String {
    let find = |(name, rules): &(&str, R)| {
        let outcome = run_all(seeds.clone(), |seed| run_history(seed, *rules));
        format!("{name}: {:?}\n", outcome.err())
    };
    rules.iter().copied().flatten().map(find).collect()
}
