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
    let retention = installation.create_retention(&installation.create_engine()?)?;
    let reports = match command {
        RetentionCommand::Show | RetentionCommand::Run { dry_run: true } => {
            retention.show().await?
        }
        RetentionCommand::Run { dry_run: false } => retention.run(&stop).await?,
    };
    context
        .output()
        .print_result(&reports, |reports| format_reports(reports))
}

fn format_reports(reports: &[KindReport]) -> String {
    let mut text = format_row([
        "kind", "of", "count", "size", "oldest", "expired", "deleted", "policy",
    ]);
    for report in reports {
        let origin = report.topic.as_deref();
        let origin = origin.or_else(|| report.source.map(|source| source.name()));
        text.push_str(&format_row([
            report.kind.name(),
            origin.unwrap_or("-"),
            &report.stored.count.to_string(),
            &format_size(&report.stored),
            report.stored.oldest.as_deref().unwrap_or("-"),
            &report.eligible.count.to_string(),
            &report.deleted.count.to_string(),
            &report.policy,
        ]));
        for item in &report.retained {
            text.push_str(&format!("  {} retained: {}\n", item.count, item.reason));
        }
        for warning in &report.warnings {
            text.push_str(&format!("  note: {warning}\n"));
        }
    }
    text
}

fn format_row([kind, origin, count, size, oldest, expired, deleted, policy]: [&str; 8]) -> String {
    format!(
        "{kind:<17}  {origin:<32}  {count:>9}  {size:>9}  {oldest:<24}  {expired:>7}  {deleted:>7}  {policy}\n"
    )
}

/// Formats bytes with a unit that leaves at most four digits.
fn format_size(amount: &Amount) -> String {
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
        let format = |bytes| {
            format_size(&Amount {
                bytes: Some(bytes),
                ..Amount::default()
            })
        };
        assert_eq!(format_size(&Amount::default()), "-");
        assert_eq!(format(0), "0 B");
        assert_eq!(format(9_999), "9999 B");
        assert_eq!(format(10_240), "10 KiB");
        assert_eq!(format(u64::MAX), "16777215 TiB");
    }
}
