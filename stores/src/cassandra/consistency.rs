//! The consistency levels that the options name.

use scylla::statement::{Consistency, SerialConsistency};

use super::CassandraOptions;
use crate::{Error, Result};

impl CassandraOptions {
    pub(super) fn read_consistency(&self) -> Result<Consistency> {
        match self.consistency.as_str() {
            "local_quorum" => Ok(Consistency::LocalQuorum),
            "quorum" => Ok(Consistency::Quorum),
            "local_one" => Ok(Consistency::LocalOne),
            "one" => Ok(Consistency::One),
            "all" => Ok(Consistency::All),
            other => Err(wrong(format!(
                "{other:?} is no consistency; write local_quorum, quorum, local_one, one or all"
            ))),
        }
    }

    pub(super) fn agreement(&self) -> Result<SerialConsistency> {
        match self.serial_consistency.as_str() {
            "local_serial" => Ok(SerialConsistency::LocalSerial),
            "serial" => Ok(SerialConsistency::Serial),
            other => Err(wrong(format!(
                "{other:?} is no serial consistency; write local_serial or serial"
            ))),
        }
    }
}

pub(super) fn wrong(why: impl ToString) -> Error {
    Error::broken("using Cassandra", why)
}
