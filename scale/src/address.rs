//! The network address of a scheduler.

use std::fmt;
use std::str::FromStr;

/// A text is not an address.
#[derive(Debug, thiserror::Error)]
#[error("{text:?} is not an address: write a host and a port, such as 127.0.0.1:50050")]
pub struct AddressError {
    text: String,
}

/// A host (a name or an IP address) and a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// The host. An IPv6 address is in brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let invalid = || AddressError {
            text: text.to_owned(),
        };
        let (host, port) = text.rsplit_once(':').ok_or_else(invalid)?;
        let port = port.parse::<u16>().map_err(|_| invalid())?;
        let is_bare = !host.is_empty() && !host.contains([':', '/', '@', ' ', '[', ']']);
        let inside = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        let is_bracketed = inside.is_some_and(|host| host.parse::<std::net::Ipv6Addr>().is_ok());
        if port == 0 || !is_bare && !is_bracketed {
            return Err(invalid());
        }
        Ok(Self {
            host: host.to_owned(),
            port,
        })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

impl Address {
    /// Returns the URL for HTTP clients.
    pub(crate) fn url(&self) -> String {
        format!("http://{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_a_host_and_a_port() {
        for text in [
            "127.0.0.1:50050",
            "scheduler:1",
            "a.b-c.example:65535",
            "[::1]:50050",
        ] {
            let address: Address = text.parse().expect(text);
            assert_eq!(address.to_string(), text);
        }
        for text in [
            "",
            ":1",
            "a",
            "a:",
            "a:0",
            "a:65536",
            "::1:5",
            "http://a:1",
            "a/b:1",
            "[a]:1",
        ] {
            let error = text.parse::<Address>().expect_err(text);
            assert!(error.to_string().contains("127.0.0.1:50050"), "{error}");
        }
    }
}
