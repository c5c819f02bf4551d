//! Chooses the access key: from the options or from the environment, never half of each.

use object_store::aws::AwsCredential;

/// The variables `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` and `AWS_SESSION_TOKEN`.
#[derive(Debug, Default)]
pub(super) struct EnvironmentKey {
    pub(super) id: Option<String>,
    pub(super) secret: Option<String>,
    pub(super) token: Option<String>,
}

/// The access key, if the options have a part of one; otherwise the client finds one. The
/// environment may supply the other part, unless it holds another key. A session token belongs to
/// the secret of the environment.
///
/// # Errors
/// The missing part.
pub(super) fn resolve_key(
    id: &str,
    secret: &str,
    environment: EnvironmentKey,
) -> Result<Option<AwsCredential>, &'static str> {
    let non_empty = |text: Option<String>| text.filter(|text| !text.is_empty());
    let EnvironmentKey {
        id: environment_id,
        secret: environment_secret,
        token,
    } = environment;
    let environment_id = non_empty(environment_id);
    let (key_id, secret_key, token) = match (id, secret) {
        ("", "") => return Ok(None),
        ("", secret) => {
            let id = environment_id.ok_or(
                "secret_access_key is set without an access key id; set access_key_id or AWS_ACCESS_KEY_ID",
            )?;
            (id, secret.to_owned(), None)
        }
        (id, "") => {
            if environment_id.is_some_and(|environment| environment != id) {
                return Err(
                    "access_key_id is set, but the environment contains the secret of another key; set secret_access_key, or remove access_key_id to use AWS_ACCESS_KEY_ID",
                );
            }
            let secret = non_empty(environment_secret).ok_or(
                "access_key_id is set without a secret; set secret_access_key or AWS_SECRET_ACCESS_KEY",
            )?;
            (id.to_owned(), secret, non_empty(token))
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

    /// The parts of the key from options and environment.
    fn resolve(
        id: &str,
        secret: &str,
        environment: [&str; 3],
    ) -> Result<Option<[String; 3]>, &'static str> {
        let [environment_id, environment_secret, token] =
            environment.map(|text| Some(text.to_owned()));
        let environment = EnvironmentKey {
            id: environment_id,
            secret: environment_secret,
            token,
        };
        let parts =
            |key: AwsCredential| [key.key_id, key.secret_key, key.token.unwrap_or_default()];
        Ok(resolve_key(id, secret, environment)?.map(parts))
    }

    fn parts(parts: [&str; 3]) -> Result<Option<[String; 3]>, &'static str> {
        Ok(Some(parts.map(str::to_owned)))
    }

    #[test]
    fn never_combines_parts_of_two_keys() {
        assert_eq!(resolve("", "", ["A", "s", "t"]), Ok(None));
        assert_eq!(resolve("B", "r", ["A", "s", "t"]), parts(["B", "r", ""]));
        assert_eq!(resolve("B", "", ["", "s", ""]), parts(["B", "s", ""]));
        assert_eq!(resolve("B", "", ["", "s", "t"]), parts(["B", "s", "t"]));
        assert_eq!(resolve("A", "", ["A", "s", "t"]), parts(["A", "s", "t"]));
        assert_eq!(resolve("", "r", ["A", "s", "t"]), parts(["A", "r", ""]));
        let missing = resolve("B", "", ["", "", ""]).expect_err("no secret");
        assert!(missing.contains("AWS_SECRET_ACCESS_KEY"), "{missing}");
        let other = resolve("B", "", ["A", "s", "t"]).expect_err("another key's");
        assert!(other.contains("another key"), "{other}");
        let missing = resolve("", "r", ["", "s", "t"]).expect_err("no id");
        assert!(missing.contains("AWS_ACCESS_KEY_ID"), "{missing}");
    }
}
