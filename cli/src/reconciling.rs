//! Builds scheduled reconciliations from the settings.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use anyhow::Context;
use batch::{Policy, RestoreRequest, Scheduled, ScheduledView};
use schemas::source::Source;
use stores::Secret;
use stores::intake::Intake;

use crate::failure::usage;
use crate::installation::Installation;
use crate::settings::ReconciliationSection;

/// The scheduled reconciliations, or only the one named `only`.
///
/// # Errors
/// An unknown name or view, or a token that cannot be read.
pub(crate) async fn scheduled(
    installation: &Installation,
    only: Option<&str>,
) -> anyhow::Result<Vec<Scheduled>> {
    let sections = installation.reconciliations();
    let is_selected =
        |section: &&ReconciliationSection| only.is_none_or(|only| section.name == only);
    let found: Vec<&ReconciliationSection> = sections.iter().filter(is_selected).collect();
    if let (Some(name), true) = (only, found.is_empty()) {
        let known: Vec<&str> = sections.iter().map(|one| one.name.as_str()).collect();
        return Err(usage(format!(
            "--scheduled {name}: no [[reconciliation]] has this name; known names: {}",
            if known.is_empty() {
                "none".to_owned()
            } else {
                known.join(", ")
            }
        )));
    }
    let catalog = installation.catalog()?;
    let mut intakes: BTreeMap<Source, Arc<Intake>> = BTreeMap::new();
    let mut all = Vec::new();
    for section in found {
        let request = request(section)?;
        let mut views = Vec::new();
        for view in &section.views {
            let source = catalog.names().find(|(name, _)| *name == view.as_str());
            let Some((_, source)) = source else {
                return Err(usage(format!(
                    "reconciliation {}: unknown view {view}",
                    section.name
                )));
            };
            let intake = match intakes.entry(source) {
                Entry::Occupied(known) => Arc::clone(known.get()),
                Entry::Vacant(entry) => {
                    let intake = Arc::new(installation.intake(source).await?);
                    Arc::clone(entry.insert(intake))
                }
            };
            views.push(ScheduledView {
                request: RestoreRequest {
                    view: view.clone(),
                    ..request.clone()
                },
                intake,
            });
        }
        all.push(Scheduled {
            name: section.name.clone(),
            every_ms: section.interval_minutes.saturating_mul(60_000),
            last_days: section.last_days,
            views,
        });
    }
    Ok(all)
}

fn request(section: &ReconciliationSection) -> anyhow::Result<RestoreRequest> {
    let bearer = bearer(&section.bearer_file, &section.bearer_env)?;
    let request = section.spec(bearer.as_ref()).request();
    let wrong = |(field, why)| usage(format!("reconciliation {}: {field}: {why}", section.name));
    Ok(RestoreRequest {
        sample: section.sample,
        limit: 50,
        apply: section.policy == Policy::Apply,
        apply_max: section.apply_max,
        by: format!("schedule {}", section.name),
        reason: section.reason.clone(),
        ..request.map_err(wrong)?
    })
}

/// Reads a bearer token from a file or an environment variable, if one is named.
///
/// # Errors
/// A file that cannot be read, or a variable that is not set.
pub(crate) fn bearer(file: &str, variable: &str) -> anyhow::Result<Option<Secret>> {
    let token = if !file.is_empty() {
        std::fs::read_to_string(file)
            .with_context(|| format!("reading the bearer token from {file}"))?
    } else if !variable.is_empty() {
        std::env::var(variable).map_err(|_| {
            usage(format!(
                "the environment variable {variable} with the bearer token is not set"
            ))
        })?
    } else {
        return Ok(None);
    };
    let token = token.trim();
    if token.is_empty() {
        return Err(usage("the bearer token is empty"));
    }
    Ok(Some(Secret::from(token.to_owned())))
}
