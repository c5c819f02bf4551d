//! Progress bars, shown on terminals only.

use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

/// All bars of the process; log lines are written between them.
static BARS: LazyLock<MultiProgress> = LazyLock::new(MultiProgress::new);

/// Runs `write` while the bars are hidden.
pub(crate) fn suspend<T>(write: impl FnOnce() -> T) -> T {
    BARS.suspend(write)
}

/// Starts a bar that counts bytes; without `total` it shows a running number. It is hidden unless
/// standard error is a terminal.
pub(crate) fn start_byte_bar(label: &str, total: Option<u64>) -> ProgressBar {
    let template = match total {
        Some(_) => "{msg} {bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta}",
        None => "{msg} {spinner} {bytes} {bytes_per_sec}",
    };
    start_bar(label, total, template)
}

/// Starts a bar that counts items; if `total` is 0 it shows a running number.
pub(crate) fn start_item_bar(label: &str, total: u64) -> ProgressBar {
    if total == 0 {
        return start_bar(label, None, "{msg} {spinner} {human_pos} {per_sec}");
    }
    start_bar(
        label,
        Some(total),
        "{msg} {bar:30} {human_pos}/{human_len} {per_sec} {eta}",
    )
}

fn start_bar(label: &str, total: Option<u64>, template: &str) -> ProgressBar {
    let bar = total.map_or_else(ProgressBar::no_length, ProgressBar::new);
    let bar = BARS.add(bar);
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.set_message(label.to_owned());
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// Shows the stages of a batch run, one bar after another. Dropping it removes the last bar.
#[derive(Debug, Default)]
pub(crate) struct StageBars {
    bar: Mutex<Option<ProgressBar>>,
}

impl Drop for StageBars {
    fn drop(&mut self) {
        self.clear();
    }
}

impl StageBars {
    fn clear(&self) {
        if let Some(bar) = self.lock().take() {
            bar.finish_and_clear();
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<ProgressBar>> {
        self.bar.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl batch::Progress for StageBars {
    fn stage(&self, name: &str, total: u64) {
        self.clear();
        *self.lock() = Some(start_item_bar(name, total));
    }

    fn advance(&self, count: u64) {
        if let Some(bar) = &*self.lock() {
            bar.inc(count);
        }
    }
}
