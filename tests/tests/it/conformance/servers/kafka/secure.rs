//! TLS, and brokers that ask who one is.

use tests::certificates::Certificates;
use tests::own::OwnServer;

use super::*;

/// A broker is spoken to if its certificate is of the authority that is named, and lets in who knows the
/// password; else the error says what is wrong, and no password.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_a_trusted_broker_and_a_known_user() -> Result<()> {
    let certificates = Certificates::make();
    let kafka = OwnServer::secure_kafka(&certificates.file("both.pem"));
    let right = KafkaOptions {
        bootstrap_servers: kafka.secure(),
        security_protocol: "sasl_ssl".to_owned(),
        sasl_mechanism: "SCRAM-SHA-512".to_owned(),
        sasl_username: "backstitch".to_owned(),
        sasl_password: "backstitch".to_owned().into(),
        ca_file: certificates.file("ca.pem"),
        request_timeout_ms: 5_000,
        ..KafkaOptions::default()
    };
    let namespace = servers::namespace();
    for (offset, mechanism) in ["SCRAM-SHA-512", "PLAIN"].into_iter().enumerate() {
        let options = KafkaOptions {
            sasl_mechanism: mechanism.to_owned(),
            ..right.clone()
        };
        let log = KafkaLog::open(&options, &namespace)?;
        assert_eq!(log.ensure_topic(TOPIC, 1).await?, 1);
        let records = NewRecords {
            partition: 0,
            keys: binary(["a"]),
            values: binary(["one"]),
            headers: Vec::new(),
        };
        let offsets = log.append(TOPIC, &[records], 1).await?;
        assert_eq!(offsets, [offset as i64]);
        let limit = FetchLimit {
            records: 10,
            bytes: 1 << 20,
        };
        let fetched = log.fetch(TOPIC, 0, 0, limit).await?;
        assert_eq!(fetched.records.len(), offset + 1);
    }
    let password = "not-the-password";
    for (options, kind, why) in [
        (
            KafkaOptions {
                sasl_password: password.to_owned().into(),
                ..right.clone()
            },
            ErrorKind::Retry,
            "check user, password and mechanism",
        ),
        (
            KafkaOptions {
                ca_file: certificates.file("other.pem"),
                ..right.clone()
            },
            ErrorKind::Retry,
            "check ca_file",
        ),
        (
            KafkaOptions {
                ca_file: certificates.file("missing.pem"),
                ..right.clone()
            },
            ErrorKind::Fatal,
            "missing.pem",
        ),
        (
            KafkaOptions {
                security_protocol: "plaintext".to_owned(),
                ..right.clone()
            },
            ErrorKind::Retry,
            "Kafka at",
        ),
    ] {
        let begun = Instant::now();
        let refused = async { KafkaLog::open(&options, &namespace)?.spans(TOPIC).await };
        let error = refused.await.expect_err("it is not let in");
        let said = error.to_string();
        assert!(said.contains(why) && !said.contains(password), "{said}");
        assert_eq!(error.kind(), kind, "{said}");
        assert!(begun.elapsed() < PATIENCE, "{said}");
    }
    Ok(())
}
