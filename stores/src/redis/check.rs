//! Diagnostics of the server of live state.

use async_trait::async_trait;
use bytes::Bytes;

use super::live::RedisLive;
use super::nodes::Request;
use super::record::PartitionKeys;
use super::script::CHANGE;
use crate::{Result, Server};

#[async_trait]
impl Server for RedisLive {
    fn name(&self) -> &'static str {
        "live state on Redis"
    }

    async fn diagnostics(&self) -> Result<Vec<String>> {
        let mut diagnostics = self.nodes.diagnostics().await?;
        if let Err(error) = self.probe().await {
            diagnostics.push(error.to_string());
        }
        Ok(diagnostics)
    }
}

impl RedisLive {
    /// Tests the commands that scripts use on strings: writes a key, reads it, and deletes it.
    async fn probe(&self) -> Result<()> {
        let operation = "testing write access";
        let keys = PartitionKeys::from_tag(&self.namespace.key("check"));
        let change = async |before: &'static str, after: &'static str| {
            let arguments = vec![Bytes::from(before), Bytes::from(after)];
            self.run_script(operation, &keys, &CHANGE, arguments).await
        };
        change("", "1").await?;
        let commands = [
            redis::cmd("MGET").arg(&keys.record).take(),
            redis::cmd("APPEND").arg(&keys.record).arg("").take(),
            redis::cmd("STRLEN").arg(&keys.record).take(),
            redis::cmd("GETRANGE")
                .arg(&keys.record)
                .arg(0)
                .arg(0)
                .take(),
        ];
        for command in commands {
            self.send_one(operation, Request::command(&keys, command))
                .await?;
        }
        change("1", "").await?;
        Ok(())
    }
}
