//! The Lua scripts. They are sent by hash, and in full to a node that does not know them: each node
//! of a cluster has its own script cache and loses it at a restart.

use std::sync::LazyLock;

use bytes::Bytes;
use redis::Cmd;

/// A Lua script.
#[derive(Debug)]
pub(super) struct Script {
    text: &'static str,
    hash: LazyLock<String>,
}

/// Defines a script from one file, or from several that are concatenated.
macro_rules! script {
    ($name:ident, $($file:literal),+) => {
        pub(super) static $name: Script = Script {
            text: concat!($(include_str!($file)),+),
            hash: LazyLock::new(|| {
                let text = concat!($(include_str!($file)),+);
                redis::Script::new(text).get_hash().to_owned()
            }),
        };
    };
}

script!(APPLY, "board_rows.lua", "apply.lua");
script!(BOARDS, "boards.lua");
script!(REGISTER, "register.lua");
script!(FILL, "board_rows.lua", "fill.lua");
script!(MEASURE, "measure.lua");
script!(RECORD_USE, "record_use.lua");
script!(LEAST_USED, "least_used.lua");
script!(CHANGE, "change.lua");
script!(READ, "read.lua");
script!(SCAN, "scan.lua");
script!(COLLECT, "collect.lua");
script!(MEMBERS, "members.lua");
script!(OUTBOX, "outbox.lua");
script!(REMOVE_ENTRIES, "remove_entries.lua");

impl Script {
    /// Builds the command that runs the script on the record `key`.
    pub(super) fn command(&self, key: &str, arguments: &[Bytes], needs_full_script: bool) -> Cmd {
        let bytes: usize = arguments.iter().map(Bytes::len).sum();
        let mut command = Cmd::with_capacity(arguments.len() + 4, bytes + key.len() + 64);
        if needs_full_script {
            command.arg("EVAL").arg(self.text);
        } else {
            command.arg("EVALSHA").arg(self.hash.as_str());
        }
        command.arg(1).arg(key);
        for argument in arguments {
            command.arg(argument.as_ref());
        }
        command
    }
}
