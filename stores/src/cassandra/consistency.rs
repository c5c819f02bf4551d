//! Consistency levels from the options.

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
            other => Err(options_error(format!(
                "`consistency` is {other:?}; set it to local_quorum, quorum, local_one, one or all"
            ))),
        }
    }

    pub(super) fn serial_consistency_level(&self) -> Result<SerialConsistency> {
        match self.serial_consistency.as_str() {
            "local_serial" => Ok(SerialConsistency::LocalSerial),
            "serial" => Ok(SerialConsistency::Serial),
            other => Err(options_error(format!(
                "`serial_consistency` is {other:?}; set it to local_serial or serial"
            ))),
        }
    }
}

pub(super) fn options_error(reason: impl ToString) -> Error {
    Error::broken("using Cassandra", reason)
}
