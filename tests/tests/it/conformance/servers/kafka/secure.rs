//! TLS, and brokers that require authentication.

use tests::certificates::Certificates;
use tests::dedicated_servers::DedicatedServer;

use super::*;

/// The client connects only to a broker whose certificate the configured authority signed, and the
/// broker accepts only the right password. Errors give the reason and no password.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn untrusted_brokers_and_wrong_passwords_are_refused() -> Result<()> {
    let certificates = Certificates::generate();
    let kafka = DedicatedServer::secure_kafka(&certificates.file("both.pem"));
    let right = KafkaOptions {
        bootstrap_servers: kafka.secure(),
        security_protocol: "sasl_ssl".to_owned(),
        sasl_mechanism: "SCRAM-SHA-512".to_owned(),
        sasl_username: "backstitch".to_owned(),
        sasl_password: "backstitch".to_owned().into(),
        ca_file: certificates.file("ca.pem"),
        request_timeout_ms: 60_000,
        ..KafkaOptions::default()
    };
    let namespace = servers::namespace();
    for (offset, mechanism) in (0..).zip(["SCRAM-SHA-512", "PLAIN"]) {
        let options = KafkaOptions {
            sasl_mechanism: mechanism.to_owned(),
            ..right.clone()
        };
        write_and_read(&KafkaLog::open(&options, &namespace)?, offset).await?;
    }
    let password = "not-the-password";
    let with = |password: &str, file: &str, protocol: &str| KafkaOptions {
        sasl_password: password.to_owned().into(),
        ca_file: certificates.file(file),
        security_protocol: protocol.to_owned(),
        request_timeout_ms: 5_000,
        ..right.clone()
    };
    let cases = [
        (
            with(password, "ca.pem", "sasl_ssl"),
            "check user, password and mechanism",
        ),
        (with("backstitch", "other.pem", "sasl_ssl"), "check ca_file"),
        (with("backstitch", "missing.pem", "sasl_ssl"), "missing.pem"),
        (with("backstitch", "ca.pem", "plaintext"), "Kafka at"),
    ];
    for (options, expected_reason) in cases {
        let started = Instant::now();
        let refused = async { KafkaLog::open(&options, &namespace)?.spans(TOPIC).await };
        let error = refused.await.expect_err("an authentication error");
        let message = error.to_string();
        assert!(
            message.contains(expected_reason) && !message.contains(password),
            "{message}"
        );
        // A user or certificate may become known to the brokers later, so these errors are retried.
        // A missing file is fatal.
        let is_fatal = error.kind() == ErrorKind::Fatal;
        assert_eq!(is_fatal, expected_reason == "missing.pem", "{message}");
        assert!(started.elapsed() < Duration::from_secs(30), "{message}");
    }
    Ok(())
}

/// Appends a record, expects this offset, and reads all records.
async fn write_and_read(log: &KafkaLog, offset: i64) -> Result<()> {
    assert_eq!(log.ensure_topic(TOPIC, 1).await?, 1);
    let records = NewRecords {
        partition: 0,
        keys: binary(["a"]),
        values: binary(["one"]),
        headers: Vec::new(),
    };
    assert_eq!(log.append(TOPIC, &[records], 1).await?, [offset]);
    let fetched = log.fetch(TOPIC, 0, 0, EVERYTHING).await?;
    assert_eq!(fetched.records.offsets.values().last(), Some(&offset));
    Ok(())
}
