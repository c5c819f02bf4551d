//! Classifies the errors of servers, and adds remedies.

use super::error_class::ErrorClass;
use crate::Error;
use crate::retry::RetryPolicy;

/// Finds the class of an error.
pub(crate) fn classify(error: &sqlx::Error) -> ErrorClass {
    let sqlx::Error::Database(error) = error else {
        return match error {
            sqlx::Error::Tls(_) => ErrorClass::UntrustedTls,
            // The driver reports a failed handshake as an I/O error.
            sqlx::Error::Io(error) if find_tls_error(error).is_some() => ErrorClass::UntrustedTls,
            sqlx::Error::Io(_)
            | sqlx::Error::PoolTimedOut
            | sqlx::Error::PoolClosed
            | sqlx::Error::WorkerCrashed
            | sqlx::Error::Protocol(_) => ErrorClass::Retryable,
            _ => ErrorClass::Other,
        };
    };
    #[cfg(feature = "mysql")]
    if let Some(error) = error.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>() {
        return super::mysql::classify_number(error.number());
    }
    #[cfg(feature = "postgres")]
    return super::postgres::classify_code(error.code().as_deref().unwrap_or_default());
    #[cfg(not(feature = "postgres"))]
    ErrorClass::Other
}

/// Finds the TLS error inside an I/O error, if the certificate or the protocol caused it.
fn find_tls_error(error: &std::io::Error) -> Option<&rustls::Error> {
    let inner = error.get_ref()?;
    inner.downcast_ref::<rustls::Error>().filter(|error| {
        matches!(
            error,
            rustls::Error::InvalidCertificate(_) | rustls::Error::PeerIncompatible(_)
        )
    })
}

/// Chooses the remedy for a TLS error.
fn choose_tls_remedy(error: &sqlx::Error) -> &'static str {
    use rustls::CertificateError::{
        BadSignature, Expired, ExpiredContext, NotValidForName, NotValidForNameContext,
        UnknownIssuer,
    };
    let sqlx::Error::Io(error) = error else {
        return "enable TLS on the server (ssl = on; ssl_cert and ssl_key), or set tls to disable or prefer";
    };
    match find_tls_error(error) {
        // A bad signature means that another authority of the same name signed the certificate.
        Some(rustls::Error::InvalidCertificate(UnknownIssuer | BadSignature)) => {
            "set ca_file to the certificate of the authority that signed the server's certificate"
        }
        Some(rustls::Error::InvalidCertificate(
            NotValidForName | NotValidForNameContext { .. },
        )) => {
            "set host to a name in the server's certificate, or set tls to verify-ca to accept any server of the authority"
        }
        Some(rustls::Error::InvalidCertificate(Expired | ExpiredContext { .. })) => {
            "renew the server's certificate"
        }
        _ => "replace the server's certificate",
    }
}

/// Converts the error of a call, and adds a remedy.
pub(crate) fn to_store_error(
    retry_policy: &RetryPolicy,
    schema: &str,
    operation: &str,
    error: &sqlx::Error,
) -> Error {
    let subject = retry_policy.describe(operation);
    let reason = match classify(error) {
        ErrorClass::Retryable => return retry_policy.unavailable(operation, error),
        ErrorClass::MissingSchema => format!(
            "{error}; the tables in {schema} are missing or of another version: run `backstitch migrate`"
        ),
        ErrorClass::Unauthenticated => {
            format!("{error}; check user, password, and the hosts from which this user may connect")
        }
        ErrorClass::UntrustedTls => format!("{error}; {}", choose_tls_remedy(error)),
        ErrorClass::PermissionDenied => {
            format!("{error}; grant this user rights on {schema}, see docs/canonical.md")
        }
        ErrorClass::Other => error.to_string(),
    };
    Error::broken(subject, reason)
}
