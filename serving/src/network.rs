//! IP networks in settings.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::{IpNet, Ipv4Net};
use serde::{Deserialize, Serialize};

/// An IP address or network: `10.0.0.7`, `10.0.0.0/8`, `fd00::/8`. IPv4-mapped IPv6 networks become
/// IPv4 networks, as client addresses do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Network(IpNet);

impl Network {
    /// True if the network contains an address.
    #[must_use]
    pub fn contains(&self, address: &IpAddr) -> bool {
        self.0.contains(address)
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let address = text.parse::<IpAddr>().map(IpNet::from).ok();
        let net = address.or_else(|| text.parse().ok()).ok_or_else(|| {
            format!(
                "{text:?} is not an IP address or network; write one such as 10.0.0.7 or 10.0.0.0/8"
            )
        })?;
        let net = to_canonical(net);
        if net.addr() != net.network() {
            return Err(format!(
                "{text:?} has host bits after its prefix; write {} for the network, or {} for the address",
                net.trunc(),
                net.addr()
            ));
        }
        if net.prefix_len() == 0 {
            return Err(format!(
                "{text:?} contains every address; write a smaller network, such as 10.0.0.0/8"
            ));
        }
        Ok(Self(net))
    }
}

/// Converts an IPv4-mapped IPv6 network to IPv4.
fn to_canonical(net: IpNet) -> IpNet {
    let IpAddr::V4(address) = net.addr().to_canonical() else {
        return net;
    };
    let bits = net.prefix_len().checked_sub(net.max_prefix_len() - 32);
    let ipv4_net = bits.and_then(|bits| Ipv4Net::new(address, bits).ok());
    ipv4_net.map_or(net, IpNet::V4)
}

impl TryFrom<String> for Network {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Network> for String {
    fn from(network: Network) -> Self {
        network.to_string()
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let net = &self.0;
        match net.prefix_len() == net.max_prefix_len() {
            true => write!(f, "{}", net.addr()),
            false => write!(f, "{net}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_addresses_and_networks() {
        for (text, inside, outside) in [
            ("10.0.0.7", "10.0.0.7", "10.0.0.8"),
            ("10.0.0.0/8", "10.255.1.2", "11.0.0.1"),
            ("fd00::/8", "fdff::1", "fe80::1"),
            ("::1", "::1", "::2"),
            ("::fffe:0:0/95", "::fffe:0:1", "10.0.0.1"),
        ] {
            let network: Network = text.parse().unwrap();
            assert!(network.contains(&inside.parse().unwrap()), "{text}");
            assert!(!network.contains(&outside.parse().unwrap()), "{text}");
            assert_eq!(network.to_string().parse(), Ok(network), "{text}");
        }
        for (text, formatted) in [
            ("10.0.0.7/32", "10.0.0.7"),
            ("::ffff:10.0.0.7", "10.0.0.7"),
            ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
        ] {
            let network: Network = text.parse().unwrap();
            assert_eq!(network.to_string(), formatted);
        }
        for text in [
            "",
            "10.0.0.0/33",
            "10.0.0",
            "proxy",
            "10.0.0.1:80",
            "fd00::/129",
            "10.1.2.3/16",
            "::ffff:10.0.0.1/104",
            "0.0.0.0/0",
            "::/0",
            "::ffff:0.0.0.0/96",
        ] {
            assert!(text.parse::<Network>().is_err(), "{text}");
        }
    }
}
