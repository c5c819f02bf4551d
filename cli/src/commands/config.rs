//! `config show`, `config check`, `config schema`.

use serde::Serialize;

use super::Context;
use crate::args::ConfigCommand;
use crate::settings::build_schema;

/// Result of `config check`.
#[derive(Debug, Serialize)]
struct CheckResult {
    ok: bool,
    file: Option<String>,
    settings_from_elsewhere: usize,
}

/// Runs the command. Reading the settings has validated them.
pub(super) fn run(command: ConfigCommand, context: &Context) -> anyhow::Result<()> {
    let loaded = context.loaded();
    match command {
        ConfigCommand::Show => context
            .output()
            .print_result(&loaded.effective_settings()?, |settings| settings.to_toml()),
        ConfigCommand::Check => {
            let checked = CheckResult {
                ok: true,
                file: loaded.file.as_ref().map(|file| file.display().to_string()),
                settings_from_elsewhere: loaded.count_set(),
            };
            context.output().print_result(&checked, |checked| {
                let file = checked.file.as_deref().unwrap_or("no file");
                format!(
                    "the configuration is valid: {file}, {} settings differ from the defaults",
                    checked.settings_from_elsewhere
                )
            })
        }
        ConfigCommand::Schema => context.output().print_result(&build_schema(), |schema| {
            serde_json::to_string_pretty(schema).unwrap_or_default()
        }),
    }
}
