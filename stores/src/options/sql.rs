//! Where the canonical database is, and how long it is waited for.

use serde::{Deserialize, Serialize};

use crate::Secret;

/// Which server it is.
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

/// How the connection is kept from others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SqlTls {
    /// Not at all.
    Disable,
    /// By TLS, if the server speaks it.
    #[default]
    Prefer,
    /// By TLS; whose certificate it is, is not asked.
    Require,
    /// By TLS with a certificate of an authority that is trusted.
    VerifyCa,
    /// By TLS with such a certificate for this host.
    VerifyFull,
}

/// Where the canonical database is. An empty text and a 0 are as if nothing was said.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SqlOptions {
    /// `postgres` or `mysql`; MariaDB is `mysql`.
    pub server: SqlServer,
    /// The host; `127.0.0.1` unless said.
    pub host: String,
    /// The port; that of the server unless said.
    pub port: u16,
    /// PostgreSQL: the database, in which the tables have a schema of their own (`backstitch` after the
    /// namespace); `postgres` unless said. MySQL: the database of the tables itself, after the
    /// namespace; `backstitch` unless said.
    pub database: String,
    /// The user.
    pub user: String,
    /// The user's password.
    pub password: Secret,
    /// How the connection is kept from others: `disable`, `prefer`, `require`, `verify-ca` or
    /// `verify-full`.
    pub tls: SqlTls,
    /// A file with the certificates of authorities that are trusted, as PEM, besides those of the system.
    pub ca_file: String,
    /// How many connections one process may have, besides those of dumps.
    pub connections_max: u32,
    /// How many connections a dump of many rows may have, at least 1. MySQL: always 1.
    pub dump_connections: u32,
    /// About how many rows one statement of a dump reads. A process holds about as many for each connection
    /// of the dump, and for one more; PostgreSQL sorts as many at once.
    pub dump_range_rows: u64,
    /// How long to wait for a new connection.
    pub connect_timeout_ms: u64,
    /// How long to wait until one of the connections is free.
    pub acquire_timeout_ms: u64,
    /// How long one statement may take.
    pub statement_timeout_ms: u64,
    /// How long a statement may wait for another's lock.
    pub lock_timeout_ms: u64,
    /// How long one try of a call may take, with all its statements.
    pub request_timeout_ms: u64,
    /// How long a call may be tried again, in all.
    pub retry_timeout_ms: u64,
    /// How long a dump may wait for its next rows; those of a range may have to be sorted first.
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
