//! The tables of `lunette.toml` that say who may log in: `[[target.user]]`, `[target.mutual]`, `[discovery]`, `[chap]`.
//!
//! Secrets are read here, so that what is wrong with one has its place in the file. A secret that somebody wrote into
//! the file all the same is not shown in the message about it.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use lunette_iscsi::chap::{ChapAlgorithm, ChapCredential, ChapUser, Secret};
use lunette_iscsi::name::IscsiName;
use serde::Deserialize;
use serde::de::{self, Deserializer};
use toml::Spanned;

use super::chap::{ChapConfig, ChapRules, SECRET_LENGTH_MIN, parse_initiator_name};
use super::discovery_scope::DiscoveryScope;
use super::file::Fault;
use super::secret::{SecretSource, parse_chap_name, parse_environment_name};
use super::value::{Parsed, ValueError};

/// `[discovery]`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawDiscovery {
    #[serde(default)]
    pub(super) user: Vec<Spanned<RawUser>>,
    pub(super) mutual: Option<Spanned<RawMutual>>,
    pub(super) scope: Option<Parsed<DiscoveryScope>>,
}

/// `[[target.user]]` and `[[discovery.user]]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawUser {
    name: Parsed<Name>,
    secret_file: Option<Spanned<PathBuf>>,
    secret_env: Option<Spanned<Parsed<Environment>>>,
    #[serde(default)]
    initiators: Vec<Parsed<Initiator>>,
}

/// `[target.mutual]` and `[discovery.mutual]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawMutual {
    name: Option<Parsed<Name>>,
    secret_file: Option<Spanned<PathBuf>>,
    secret_env: Option<Spanned<Parsed<Environment>>>,
}

/// `[chap]`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawRules {
    #[serde(default, deserialize_with = "algorithms")]
    algorithms: Option<Vec<ChapAlgorithm>>,
    secret_length_min_bytes: Option<Parsed<SecretLength>>,
}

impl RawRules {
    pub(super) fn into_rules(self) -> ChapRules {
        let default = ChapRules::default();
        ChapRules {
            algorithms: self.algorithms.unwrap_or(default.algorithms),
            secret_length_min_bytes: self
                .secret_length_min_bytes
                .map_or(default.secret_length_min_bytes, |Parsed(SecretLength(bytes))| bytes),
        }
    }
}

fn algorithms<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<ChapAlgorithm>>, D::Error> {
    let names: Vec<String> = Deserialize::deserialize(deserializer)?;
    let found: Vec<ChapAlgorithm> =
        names.iter().map(|name| name.parse().map_err(de::Error::custom)).collect::<Result<_, _>>()?;
    if found.is_empty() {
        return Err(de::Error::custom(
            "without an algorithm nobody can log in; leave the key out for all of them",
        ));
    }
    Ok(Some(found))
}

#[derive(Debug)]
struct Name(String);

impl FromStr for Name {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        parse_chap_name(text).map(Self)
    }
}

#[derive(Debug)]
struct Environment(String);

impl FromStr for Environment {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        parse_environment_name(text).map(Self)
    }
}

#[derive(Debug)]
struct Initiator(IscsiName);

impl FromStr for Initiator {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        parse_initiator_name(text).map(Self)
    }
}

#[derive(Debug)]
struct SecretLength(usize);

impl FromStr for SecretLength {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text.parse() {
            Ok(bytes) if (1..=64).contains(&bytes) => Ok(Self(bytes)),
            _ => Err(ValueError(format!(
                "must be 1 to 64, not {text}; below {SECRET_LENGTH_MIN} only where IPsec encrypts every connection"
            ))),
        }
    }
}

/// Makes users out of tables.
pub(super) struct Credentials<'a> {
    /// Where relative paths count from.
    pub(super) directory: &'a Path,
    pub(super) length_min: usize,
}

impl Credentials<'_> {
    /// The users of a target, whose own CHAP name is its iSCSI name unless told otherwise, or of discovery.
    pub(super) fn read(
        &self,
        users: Vec<Spanned<RawUser>>,
        mutual: Option<Spanned<RawMutual>>,
        target: Option<&str>,
    ) -> Result<ChapConfig, Fault> {
        let users = users.into_iter().map(|user| {
            let at = user.span();
            let RawUser { name: Parsed(Name(name)), secret_file, secret_env, initiators } = user.into_inner();
            let secret = self.secret(secret_file, secret_env, at)?;
            let initiators = initiators.into_iter().map(|Parsed(Initiator(name))| name).collect();
            Ok(ChapUser { credential: ChapCredential { name, secret }, initiators })
        });
        let users = users.collect::<Result<_, Fault>>()?;
        let mutual = mutual.map(|mutual| {
            let at = mutual.span();
            let RawMutual { name, secret_file, secret_env } = mutual.into_inner();
            let name = name.map(|Parsed(Name(name))| name).or_else(|| target.map(str::to_owned));
            let name = name.ok_or_else(|| {
                fault(at.clone(), "discovery belongs to no target: give the name that it proves to have")
            })?;
            Ok(ChapCredential { name, secret: self.secret(secret_file, secret_env, at)? })
        });
        Ok(ChapConfig { users, mutual: mutual.transpose()? })
    }

    fn secret(
        &self,
        file: Option<Spanned<PathBuf>>,
        environment: Option<Spanned<Parsed<Environment>>>,
        at: Range<usize>,
    ) -> Result<Secret, Fault> {
        let (at, source) = match (file, environment) {
            (Some(file), None) => (file.span(), SecretSource::File(self.directory.join(file.into_inner()))),
            (None, Some(name)) => {
                let at = name.span();
                let Parsed(Environment(name)) = name.into_inner();
                (at, SecretSource::Environment(name))
            }
            (None, None) => return Err(fault(at, "give secret_file or secret_env: where the secret is")),
            (Some(_), Some(name)) => {
                return Err(fault(name.span(), "there is a secret_file already; give one of the two"));
            }
        };
        source.read(self.length_min).map_err(|error| fault(at, error))
    }
}

fn fault(at: Range<usize>, message: impl fmt::Display) -> Fault {
    Fault { at, message: message.to_string() }
}

/// Keys whose values must not be repeated, though they do not say so: somebody may have taken them for the place of the
/// secret itself.
const HIDDEN_KEYS: [&str; 3] = ["user", "mutual", "chap"];

/// Keys that speak of secrets and have none in them.
const SHOWN_KEYS: [&str; 2] = ["secret_file", "secret_length_min_bytes"];

/// Whether the value of a key, or of what somebody took for one, may be a secret.
fn is_hidden(key: &str) -> bool {
    let key = key.to_lowercase();
    let speaks_of_secrets = key.contains("secret") || key.contains("pass");
    HIDDEN_KEYS.contains(&key.as_str()) || (speaks_of_secrets && !SHOWN_KEYS.contains(&key.as_str()))
}

/// A line of the file and a message about it, without what may be a secret in either.
pub(super) fn hide(line: &str, message: String) -> (String, String) {
    let is_part_of_key =
        |character: char| character.is_alphanumeric() || character == '_' || character == '-';
    let mut keys = line.split_inclusive(|character| !is_part_of_key(character)).scan(0, |end, part| {
        *end += part.len();
        let key = part.trim_end_matches(|character| !is_part_of_key(character));
        Some((key, *end - part.len() + key.len()))
    });
    let value = keys.find_map(|(key, end)| {
        let behind = line[end..].trim_start_matches(['"', '\'', ' ', '\t']);
        // A colon is a mistake, and what is behind it a secret all the same.
        let value = behind.strip_prefix(['=', ':'])?;
        is_hidden(key).then_some(line.len() - value.len())
    });
    let Some(value) = value else {
        return (line.to_owned(), message);
    };
    // The parser quotes a value of the wrong type.
    let message = match (message.find('"'), message.rfind('"')) {
        (Some(first), Some(last)) if first < last => format!("{}...{}", &message[..=first], &message[last..]),
        _ => message,
    };
    (format!("{} (not shown)", &line[..value]), message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_may_hold_a_secret_end_behind_the_key() {
        for (line, shown) in [
            ("secret = \"hunter2\"", "secret = (not shown)"),
            ("\"secret\"=\"hunter2", "\"secret\"= (not shown)"),
            ("user = [{ name = \"a\", secret = 'hunter2' }]", "user = (not shown)"),
            ("{ name = \"a\", secret = 'hunter2' }", "{ name = \"a\", secret = (not shown)"),
            ("secret_env = \"hunter-2\"", "secret_env = (not shown)"),
            ("chap_secret = \"hunter2\"", "chap_secret = (not shown)"),
            ("Secret = \"hunter2\"", "Secret = (not shown)"),
            ("passwd=\"hunter2\"", "passwd= (not shown)"),
            ("secret: \"hunter2\"", "secret: (not shown)"),
            ("secret_file = \"a.secret\"", "secret_file = \"a.secret\""),
            ("[[target.user]]", "[[target.user]]"),
            ("name = \"user\"", "name = \"user\""),
        ] {
            assert_eq!(hide(line, String::new()).0, shown);
        }
    }

    #[test]
    fn a_quoted_value_is_taken_out_of_the_message_too() {
        let message = "invalid type: string \"hunter\\\"2\", expected a table".to_owned();
        let (_, shown) = hide("mutual = \"hunter2\"", message.clone());
        assert_eq!(shown, "invalid type: string \"...\", expected a table");
        assert_eq!(hide("block = \"x\"", message.clone()).1, message);
    }
}
