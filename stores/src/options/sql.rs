//! The settings of the database of entities.

use serde::{Deserialize, Serialize};

use crate::Secret;

/// The kind of database server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SqlServer {
    /// PostgreSQL, 13 or newer.
    #[default]
    Postgres,
    /// MySQL, 8.0.19 or newer, or MariaDB, 10.6 or newer.
    #[serde(alias = "mariadb")]
    MySql,
}

impl SqlServer {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Postgres => "PostgreSQL",
            Self::MySql => "MySQL",
        }
    }

    pub(crate) const fn port(self) -> u16 {
        match self {
            Self::Postgres => 5432,
            Self::MySql => 3306,
        }
    }
}

/// The protection of the connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SqlTls {
    /// No TLS.
    Disable,
    /// TLS if the server supports it.
    #[default]
    Prefer,
    /// TLS without verification of the certificate.
    Require,
    /// TLS with a certificate of a trusted authority.
    VerifyCa,
    /// TLS with a certificate of a trusted authority for this host.
    VerifyFull,
}

/// The connection to the database of entities. An empty text and 0 select the default.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SqlOptions {
    /// `postgres` or `mysql`; MariaDB is `mysql`.
    pub server: SqlServer,
    /// The host; by default `127.0.0.1`.
    pub host: String,
    /// The port; by default that of the server.
    pub port: u16,
    /// PostgreSQL: the database, by default `postgres`, in which the tables have their own schema
    /// (`backstitch` after the namespace). MySQL: the database of the tables, after the namespace;
    /// by default `backstitch`.
    pub database: String,
    /// The user.
    pub user: String,
    /// The user's password.
    pub password: Secret,
    /// The protection of the connection: `disable`, `prefer`, `require`, `verify-ca` or
    /// `verify-full`.
    pub tls: SqlTls,
    /// A PEM file with the certificates of trusted authorities, in addition to those of the system.
    pub ca_file: String,
    /// The maximum number of connections of a process, besides those of dumps.
    pub connections_max: u32,
    /// The maximum number of connections of a large dump, at least 1. MySQL always uses 1.
    pub dump_connections: u32,
    /// The approximate number of rows that one statement of a dump reads. A process holds as many
    /// for each connection of the dump, and for one more; PostgreSQL sorts as many at once.
    pub dump_range_rows: u64,
    /// The timeout of a connection attempt, in milliseconds.
    pub connect_timeout_ms: u64,
    /// The time to wait for a free connection, in milliseconds.
    pub acquire_timeout_ms: u64,
    /// The timeout of one statement, in milliseconds.
    pub statement_timeout_ms: u64,
    /// The time that a statement waits for a lock, in milliseconds.
    pub lock_timeout_ms: u64,
    /// The timeout of one try of a call with all its statements, in milliseconds.
    pub request_timeout_ms: u64,
    /// The total time to retry a call, in milliseconds.
    pub retry_timeout_ms: u64,
    /// The time that a dump waits for its next rows, in milliseconds. The server may have to sort
    /// the rows of a range first.
    pub dump_timeout_ms: u64,
}

impl Default for SqlOptions {
    fn default() -> Self {
        Self {
            server: SqlServer::default(),
            host: String::new(),
            port: 0,
            database: String::new(),
            user: String::new(),
            password: Secret::default(),
            tls: SqlTls::default(),
            ca_file: String::new(),
            connections_max: 8,
            dump_connections: 4,
            dump_range_rows: 131_072,
            connect_timeout_ms: 5_000,
            acquire_timeout_ms: 10_000,
            statement_timeout_ms: 60_000,
            lock_timeout_ms: 10_000,
            request_timeout_ms: 120_000,
            retry_timeout_ms: 120_000,
            dump_timeout_ms: 600_000,
        }
    }
}

impl SqlOptions {
    pub(crate) fn host(&self) -> &str {
        if self.host.is_empty() {
            "127.0.0.1"
        } else {
            &self.host
        }
    }

    pub(crate) const fn port(&self) -> u16 {
        if self.port == 0 {
            self.server.port()
        } else {
            self.port
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_not_shown() {
        let options = SqlOptions {
            password: "p/w".to_owned().into(),
            ..SqlOptions::default()
        };
        assert!(!format!("{options:?}").contains("p/w"));
    }

    #[test]
    fn options_come_back() {
        let json = serde_json::json!({"server": "mariadb", "tls": "verify-ca"});
        let options: SqlOptions = serde_json::from_value(json).expect("options");
        assert_eq!(options.server, SqlServer::MySql);
        assert_eq!(options.tls, SqlTls::VerifyCa);
    }
}
