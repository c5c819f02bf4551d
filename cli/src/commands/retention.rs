//! `retention show`, `retention run`.

use batch::{Amount, KindReport};
use tokio_util::sync::CancellationToken;

use super::Context;
use crate::args::RetentionCommand;
use crate::installation::Installation;

/// Runs the command.
pub(super) async fn run(
    command: RetentionCommand,
    context: &Context,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let installation = Installation::open_existing(context.settings()).await?;
    let retention = installation.retention(&installation.engine()?)?;
    let reports = match command {
        RetentionCommand::Show | RetentionCommand::Run { dry_run: true } => {
            retention.show().await?
        }
        RetentionCommand::Run { dry_run: false } => retention.run(&stop).await?,
    };
    context
        .output()
        .result(&reports, |reports| text_of(reports))
}

fn text_of(reports: &[KindReport]) -> String {
    let mut text = line([
        "kind", "of", "count", "size", "oldest", "expired", "deleted", "policy",
    ]);
    for report in reports {
        let of = report.topic.as_deref();
        let of = of.or_else(|| report.source.map(|source| source.name()));
        text.push_str(&line([
            report.kind.name(),
            of.unwrap_or("-"),
            &report.stored.count.to_string(),
            &size_of(&report.stored),
            report.stored.oldest.as_deref().unwrap_or("-"),
            &report.eligible.count.to_string(),
            &report.deleted.count.to_string(),
            &report.policy,
        ]));
        for item in &report.retained {
            text.push_str(&format!("  {} retained: {}\n", item.count, item.why));
        }
        for warning in &report.warnings {
            text.push_str(&format!("  note: {warning}\n"));
        }
    }
    text
}

fn line([kind, of, count, size, oldest, expired, deleted, policy]: [&str; 8]) -> String {
    format!(
        "{kind:<17}  {of:<32}  {count:>9}  {size:>9}  {oldest:<24}  {expired:>7}  {deleted:>7}  {policy}\n"
    )
}

/// Formats bytes with a unit that leaves at most four digits.
fn size_of(amount: &Amount) -> String {
    let Some(bytes) = amount.bytes else {
        return "-".to_owned();
    };
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut size, mut unit) = (bytes, 0);
    while size >= 10_000 && unit + 1 < units.len() {
        size /= 1024;
        unit += 1;
    }
    format!("{size} {}", units.get(unit).unwrap_or(&"B"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_at_most_four_digits() {
        let size = |bytes| {
            size_of(&Amount {
                bytes: Some(bytes),
                ..Amount::default()
            })
        };
        assert_eq!(size_of(&Amount::default()), "-");
        assert_eq!(size(0), "0 B");
        assert_eq!(size(9_999), "9999 B");
        assert_eq!(size(10_240), "10 KiB");
        assert_eq!(size(u64::MAX), "16777215 TiB");
    }
}
