//! Builds scheduled reconciliations from the settings.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use anyhow::Context;
use batch::{Policy, ReconcileRequest, Scheduled, ScheduledView};
use schemas::source::Source;
use stores::Secret;
use stores::intake::Intake;

use crate::failure::usage_error;
use crate::installation::Installation;
use crate::settings::ReconciliationSection;

/// Builds the scheduled reconciliations, or only that with the name `only`.
///
/// # Errors
/// An unknown name or view, or a token that cannot be read.
pub(crate) async fn load_scheduled(
    installation: &Installation,
    only: Option<&str>,
) -> anyhow::Result<Vec<Scheduled>> {
    let sections = installation.reconciliation_sections();
    let is_selected =
        |section: &&ReconciliationSection| only.is_none_or(|only| section.name == only);
    let selected: Vec<&ReconciliationSection> = sections.iter().filter(is_selected).collect();
    if let (Some(name), true) = (only, selected.is_empty()) {
        let known: Vec<&str> = sections
            .iter()
            .map(|section| section.name.as_str())
            .collect();
        return Err(usage_error(format!(
            "--scheduled {name}: no [[reconciliation]] has this name; known names: {}",
            if known.is_empty() {
                "none".to_owned()
            } else {
                known.join(", ")
            }
        )));
    }
    let catalog = installation.load_catalog()?;
    let mut intakes: BTreeMap<Source, Arc<Intake>> = BTreeMap::new();
    let mut reconciliations = Vec::new();
    for section in selected {
        let request = build_request(section)?;
        let mut views = Vec::new();
        for view in &section.views {
            let source = catalog.names().find(|(name, _)| *name == view.as_str());
            let Some((_, source)) = source else {
                return Err(usage_error(format!(
                    "reconciliation {}: unknown view {view}",
                    section.name
                )));
            };
            let intake = match intakes.entry(source) {
                Entry::Occupied(entry) => Arc::clone(entry.get()),
                Entry::Vacant(entry) => {
                    let intake = Arc::new(installation.open_intake(source).await?);
                    Arc::clone(entry.insert(intake))
                }
            };
            views.push(ScheduledView {
                request: ReconcileRequest {
                    view: view.clone(),
                    ..request.clone()
                },
                intake,
            });
        }
        reconciliations.push(Scheduled {
            name: section.name.clone(),
            every_ms: section.interval_minutes.saturating_mul(60_000),
            last_days: section.last_days,
            views,
        });
    }
    Ok(reconciliations)
}

fn build_request(section: &ReconciliationSection) -> anyhow::Result<ReconcileRequest> {
    let bearer = read_bearer(&section.bearer_file, &section.bearer_env)?;
    let request = section.spec(bearer.as_ref()).parse_request();
    let invalid_field = |(field, reason)| {
        usage_error(format!(
            "reconciliation {}: {field}: {reason}",
            section.name
        ))
    };
    Ok(ReconcileRequest {
        sample: section.sample,
        limit: 50,
        apply: section.policy == Policy::Apply,
        apply_max: section.apply_max,
        by: format!("schedule {}", section.name),
        reason: section.reason.clone(),
        ..request.map_err(invalid_field)?
    })
}

/// Reads a bearer token from a file or an environment variable, if one is named.
///
/// # Errors
/// A file that cannot be read, or a variable that is not set.
pub(crate) fn read_bearer(file: &str, variable: &str) -> anyhow::Result<Option<Secret>> {
    let token = if !file.is_empty() {
        std::fs::read_to_string(file)
            .with_context(|| format!("reading the bearer token from {file}"))?
    } else if !variable.is_empty() {
        std::env::var(variable).map_err(|_| {
            usage_error(format!(
                "the environment variable {variable} with the bearer token is not set"
            ))
        })?
    } else {
        return Ok(None);
    };
    let token = token.trim();
    if token.is_empty() {
        return Err(usage_error("the bearer token is empty"));
    }
    Ok(Some(Secret::from(token.to_owned())))
}
