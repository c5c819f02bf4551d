//! SQL on the entity store from many connections: PostgreSQL's pgbench with prepared statements.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use tests::installation::Installation;
use tests::servers;

use super::load::{Load, ROUND};

/// Maximum number of pgbench threads.
const THREADS: usize = 2;
/// Prefix of its log files.
const LOG: &str = "statements";

/// The entity store of an installation.
#[derive(Debug)]
pub(crate) struct Sql {
    schema: String,
    folder: PathBuf,
}

impl Sql {
    pub(crate) fn new(installation: &Installation) -> Self {
        let folder = installation.folder().join("sql");
        fs::create_dir_all(&folder).expect("a folder");
        Self {
            schema: installation.options().namespace.identifier("backstitch"),
            folder,
        }
    }

    /// Runs statements once; returns the values, one line for each row.
    pub(crate) fn run(&self, statements: &str) -> String {
        let schema = &self.schema;
        let script = format!("SET search_path = {schema}; {statements}");
        servers::run_on_postgres(&script).expect("an answer")
    }

    /// Returns the single number that a query yields.
    pub(crate) fn query_number(&self, statement: &str) -> u64 {
        self.run(statement).parse().expect("a number")
    }

    /// Runs a script repeatedly on this many connections.
    pub(crate) fn load(&self, script: &str, connections: usize) -> Load {
        let file = self.folder.join("script");
        fs::write(&file, script).expect("a script");
        let address = servers::postgres();
        let (host, port) = address.split_once(':').expect("an address");
        let output = Command::new("pgbench")
            .args(["-n", "-M", "prepared", "-U", "backstitch", "-l"])
            .args(["-h", host, "-p", port])
            .args(["-c", &connections.to_string()])
            .args(["-j", &connections.min(THREADS).to_string()])
            .args(["-T", &ROUND.as_secs().to_string()])
            .arg(format!("--log-prefix={}", self.folder.join(LOG).display()))
            .arg("-f")
            .arg(&file)
            .arg("postgres")
            .env("PGOPTIONS", format!("-c search_path={}", self.schema))
            .output()
            .expect("pgbench is installed");
        let output_text = String::from_utf8_lossy(&output.stdout);
        let error_text = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "pgbench: {output_text} {error_text}"
        );
        let rate = output_text
            .lines()
            .find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse().ok());
        Load::new(self.logged_ms(), rate.expect("a rate"), 0)
    }

    /// Returns the duration of each logged transaction, and deletes the log.
    fn logged_ms(&self) -> Vec<f64> {
        let mut took = Vec::new();
        for entry in fs::read_dir(&self.folder).expect("the folder") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if !name.starts_with(LOG) {
                continue;
            }
            let text = fs::read_to_string(&path).expect("a log");
            // client, transaction, microseconds, script, time
            let micros = text.lines().map(|line| {
                let micros = line
                    .split(' ')
                    .nth(2)
                    .and_then(|text| text.parse::<f64>().ok());
                micros.expect("a time")
            });
            took.extend(micros.map(|micros| micros / 1_000.0));
            fs::remove_file(&path).expect("deleting the log");
        }
        took
    }
}
