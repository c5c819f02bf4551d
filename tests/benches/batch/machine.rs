//! Description of the machine and the build, which the figures depend on.

use std::process::Command;

use super::{ROUNDS, THREADS};

/// Describes the machine and the build in one line.
pub(crate) fn describe() -> String {
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let memory = read_field("/proc/meminfo", "MemTotal:").unwrap_or_default();
    let kib: u64 = memory.trim_end_matches(" kB").parse().unwrap_or(0);
    let model = read_field("/proc/cpuinfo", "model name").unwrap_or_default();
    let revision = read_output("git", &["rev-parse", "--short", "HEAD"]);
    let rustc = read_output("rustc", &["--version"]);
    let build = if cfg!(debug_assertions) {
        "a debug build: these are no figures"
    } else {
        "a release build"
    };
    format!(
        "Machine: {cores} cores ({}), {} GiB. Backstitch {revision}, {build}, {rustc}. Every engine on {THREADS} threads; medians of paired rounds, {ROUNDS} by default.\n",
        model.trim_start_matches(':').trim(),
        kib >> 20
    )
}

/// Returns the value after a name in a file of lines.
pub(crate) fn read_field(file: &str, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim().to_owned())
}

fn read_output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    text.unwrap_or_default()
}
