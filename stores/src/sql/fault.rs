//! What an error of a server means, and what to do about it.

use crate::Error;
use crate::patience::Patience;

/// What a server's number for an error says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// It was too busy, is going or coming up, or took something back so that others could go on.
    Later,
    /// Tables or columns are missing.
    NoSchema,
    /// The user or the password is wrong.
    NotLetIn,
    /// No TLS, or a certificate that is not trusted.
    NotTrusted,
    /// The user lacks a right.
    NoRight,
    /// Anything else.
    Other,
}

/// The meaning of an error.
pub(crate) fn meaning(error: &sqlx::Error) -> Meaning {
    let sqlx::Error::Database(error) = error else {
        return match error {
            sqlx::Error::Tls(_) => Meaning::NotTrusted,
            // A handshake that fails comes as an error of reading.
            sqlx::Error::Io(error) if distrust(error).is_some() => Meaning::NotTrusted,
            sqlx::Error::Io(_)
            | sqlx::Error::PoolTimedOut
            | sqlx::Error::PoolClosed
            | sqlx::Error::WorkerCrashed
            | sqlx::Error::Protocol(_) => Meaning::Later,
            _ => Meaning::Other,
        };
    };
    #[cfg(feature = "mysql")]
    if let Some(error) = error.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>() {
        return super::mysql::meaning(error.number());
    }
    #[cfg(feature = "postgres")]
    return super::postgres::meaning(error.code().as_deref().unwrap_or_default());
    #[cfg(not(feature = "postgres"))]
    Meaning::Other
}

/// What is wrong with a certificate, or with how the server speaks TLS.
fn distrust(error: &std::io::Error) -> Option<&rustls::Error> {
    let inner = error.get_ref()?;
    inner.downcast_ref::<rustls::Error>().filter(|error| {
        matches!(
            error,
            rustls::Error::InvalidCertificate(_) | rustls::Error::PeerIncompatible(_)
        )
    })
}

/// What can be done about it.
fn advice(error: &sqlx::Error) -> &'static str {
    use rustls::CertificateError::{
        BadSignature, Expired, ExpiredContext, NotValidForName, NotValidForNameContext,
        UnknownIssuer,
    };
    let sqlx::Error::Io(error) = error else {
        return "let the server speak TLS (ssl = on; ssl_cert and ssl_key), or set tls to one of disable and prefer";
    };
    match distrust(error) {
        // Another authority may have the same name.
        Some(rustls::Error::InvalidCertificate(UnknownIssuer | BadSignature)) => {
            "name the certificate of the authority that signed the server's in ca_file"
        }
        Some(rustls::Error::InvalidCertificate(
            NotValidForName | NotValidForNameContext { .. },
        )) => {
            "set host to a name that the server's certificate is for, or tls to verify-ca if any server of the authority will do"
        }
        Some(rustls::Error::InvalidCertificate(Expired | ExpiredContext { .. })) => {
            "give the server a new certificate"
        }
        _ => "give the server another certificate",
    }
}

/// The error of a call.
pub(crate) fn fault(patience: &Patience, schema: &str, doing: &str, error: &sqlx::Error) -> Error {
    let what = patience.what(doing);
    let why = match meaning(error) {
        Meaning::Later => return patience.unavailable(doing, error),
        Meaning::NoSchema => format!(
            "{error}; the tables in {schema} are missing or of another version: run `backstitch migrate`"
        ),
        Meaning::NotLetIn => {
            format!("{error}; check user and password, and who may connect from here")
        }
        Meaning::NotTrusted => format!("{error}; {}", advice(error)),
        Meaning::NoRight => {
            format!(
                "{error}; give this user rights on {schema}, as the page on the canonical store says"
            )
        }
        Meaning::Other => error.to_string(),
    };
    Error::broken(what, why)
}
