//! Which key requests are signed with: the one of the options, or that of the environment, and never half
//! of each.

use object_store::aws::AwsCredential;

/// What the environment says: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`.
#[derive(Debug, Default)]
pub(super) struct Around {
    pub(super) id: Option<String>,
    pub(super) secret: Option<String>,
    pub(super) token: Option<String>,
}

/// The key, if the options have a part of one; else the client finds it by itself. The other part may
/// come from the environment, unless that is another key's. A session token belongs to the secret beside
/// which it stands.
///
/// # Errors
/// What is missing.
pub(super) fn key(
    id: &str,
    secret: &str,
    around: Around,
) -> Result<Option<AwsCredential>, &'static str> {
    let there = |text: Option<String>| text.filter(|text| !text.is_empty());
    let Around {
        id: id_around,
        secret: secret_around,
        token,
    } = around;
    let id_around = there(id_around);
    let (key_id, secret_key, token) = match (id, secret) {
        ("", "") => return Ok(None),
        ("", secret) => {
            let id = id_around.ok_or(
                "secret_access_key is set and no id of a key; set access_key_id or AWS_ACCESS_KEY_ID",
            )?;
            (id, secret.to_owned(), None)
        }
        (id, "") => {
            if id_around.is_some_and(|around| around != id) {
                return Err(
                    "access_key_id is set, and the environment holds the secret of another key; set secret_access_key, or leave access_key_id to AWS_ACCESS_KEY_ID",
                );
            }
            let secret = there(secret_around).ok_or(
                "access_key_id is set and no secret; set secret_access_key or AWS_SECRET_ACCESS_KEY",
            )?;
            (id.to_owned(), secret, there(token))
        }
        (id, secret) => (id.to_owned(), secret.to_owned(), None),
    };
    Ok(Some(AwsCredential {
        key_id,
        secret_key,
        token,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parts of the key that is made of options and environment.
    fn made(
        (id, secret): (&str, &str),
        around: [&str; 3],
    ) -> Result<Option<[String; 3]>, &'static str> {
        let [id_around, secret_around, token] = around.map(|text| Some(text.to_owned()));
        let around = Around {
            id: id_around,
            secret: secret_around,
            token,
        };
        let parts =
            |key: AwsCredential| [key.key_id, key.secret_key, key.token.unwrap_or_default()];
        Ok(key(id, secret, around)?.map(parts))
    }

    fn parts(parts: [&str; 3]) -> Result<Option<[String; 3]>, &'static str> {
        Ok(Some(parts.map(str::to_owned)))
    }

    #[test]
    fn halves_of_two_keys_are_never_one() {
        assert_eq!(made(("", ""), ["A", "s", "t"]), Ok(None));
        assert_eq!(made(("B", "r"), ["A", "s", "t"]), parts(["B", "r", ""]));
        assert_eq!(made(("B", ""), ["", "s", ""]), parts(["B", "s", ""]));
        assert_eq!(made(("B", ""), ["", "s", "t"]), parts(["B", "s", "t"]));
        assert_eq!(made(("A", ""), ["A", "s", "t"]), parts(["A", "s", "t"]));
        assert_eq!(made(("", "r"), ["A", "s", "t"]), parts(["A", "r", ""]));
        let missing = made(("B", ""), ["", "", ""]).expect_err("no secret");
        assert!(missing.contains("AWS_SECRET_ACCESS_KEY"), "{missing}");
        let other = made(("B", ""), ["A", "s", "t"]).expect_err("another key's");
        assert!(other.contains("another key"), "{other}");
        let missing = made(("", "r"), ["", "s", "t"]).expect_err("no id");
        assert!(missing.contains("AWS_ACCESS_KEY_ID"), "{missing}");
    }
}
