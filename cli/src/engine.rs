//! The engine that computes batch runs: this process, or executors on other machines.

use std::sync::Arc;

use batch::BatchOptions;
#[cfg(feature = "scale")]
use scale::Address;

#[cfg(feature = "scale")]
use crate::ballista::BallistaExecutors;
use crate::executors::Executors;
use crate::failure::usage_error;

/// The engine of a batch run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum BatchEngine {
    /// This process.
    Local,
    /// The executors of a scheduler.
    #[cfg(feature = "scale")]
    Ballista(Address),
}

impl BatchEngine {
    /// Parses `local` or `ballista://HOST:PORT`.
    ///
    /// # Errors
    /// [`crate::failure::UsageError`] for any other text, and for Ballista in a build without
    /// `scale`.
    pub(crate) fn parse(text: &str) -> anyhow::Result<Self> {
        if text == "local" {
            return Ok(Self::Local);
        }
        let Some(address) = text.strip_prefix("ballista://") else {
            return Err(usage_error(format!(
                "--engine {text}: unknown engine; write local, or ballista://HOST:PORT"
            )));
        };
        Self::parse_ballista(text, address)
    }

    #[cfg(feature = "scale")]
    fn parse_ballista(text: &str, address: &str) -> anyhow::Result<Self> {
        let address = address.trim_end_matches('/').parse::<Address>();
        let address = address.map_err(|error| usage_error(format!("--engine {text}: {error}")))?;
        Ok(Self::Ballista(address))
    }

    #[cfg(not(feature = "scale"))]
    fn parse_ballista(text: &str, _address: &str) -> anyhow::Result<Self> {
        Err(missing_scale_error(&format!("--engine {text}")))
    }

    /// Creates the client of the executors, if other machines compute. It does not connect yet.
    pub(crate) fn create_executors(&self, options: &BatchOptions) -> Option<Arc<dyn Executors>> {
        #[cfg(not(feature = "scale"))]
        let _ = options;
        match self {
            Self::Local => None,
            #[cfg(feature = "scale")]
            Self::Ballista(address) => {
                let executors = BallistaExecutors::new(address.clone(), options);
                Some(Arc::new(executors))
            }
        }
    }
}

/// Creates the usage error of a command or flag that a build without `scale` lacks.
#[cfg(not(feature = "scale"))]
pub(crate) fn missing_scale_error(subject: &str) -> anyhow::Error {
    usage_error(format!(
        "{subject} needs the Cargo feature `scale`, which this build lacks; build with `--features scale`, or install the archive with `scale` in its name"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_is_an_engine_and_unknown_names_are_usage_errors() {
        assert_eq!(BatchEngine::parse("local").unwrap(), BatchEngine::Local);
        for text in ["", "Local", "ballista", "spark://h:1"] {
            let error = BatchEngine::parse(text).unwrap_err();
            assert!(error.is::<crate::failure::UsageError>(), "{error}");
            assert!(error.to_string().contains("write"), "{error}");
        }
    }

    #[cfg(feature = "scale")]
    #[test]
    fn a_ballista_address_is_an_engine() {
        let expected = BatchEngine::Ballista("h:50050".parse().unwrap());
        for text in ["ballista://h:50050", "ballista://h:50050/"] {
            assert_eq!(BatchEngine::parse(text).unwrap(), expected);
        }
        for text in ["ballista://", "ballista://h"] {
            let error = BatchEngine::parse(text).unwrap_err().to_string();
            assert!(error.contains("write"), "{error}");
        }
    }

    #[cfg(not(feature = "scale"))]
    #[test]
    fn ballista_needs_the_feature_scale() {
        let error = BatchEngine::parse("ballista://h:50050").unwrap_err();
        assert!(error.is::<crate::failure::UsageError>(), "{error}");
        assert!(error.to_string().contains("`scale`"), "{error}");
    }
}
