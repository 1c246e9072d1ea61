//! URLs as libiscsi and QEMU have them: `iscsi://[user[%secret]@]host[:port]/target/lun[?key=value&…]`.
//!
//! A user and a secret are parted by the first `%`, or by the first `:` where there is none; behind that, and in target and
//! values, `%` and two hexadecimal digits stand for a byte. What a key of `?` may be is listed with [`TargetUrl`].

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use lunette_iscsi::Quoted;
use lunette_iscsi::chap::{ChapAlgorithm, ChapCredential, Secret};
use lunette_iscsi::initiator::discovery::Portal;
use lunette_iscsi::initiator::login::{Credentials, DigestWish, Wishes};
use lunette_iscsi::name::IscsiName;
use lunette_wire::{Isid, LunField};

use crate::Options;
use crate::identity::isid_from_hex;
use crate::secret::{secret_from_environment, secret_from_file};

/// How a URL looks, for messages.
pub const URL_FORM: &str = "iscsi://[user[%secret]@]host[:port]/target-name/lun[?key=value&...]";
/// The largest number that fits a logical unit number without a hierarchy (SAM-5, 4.7: flat space addressing).
const LUN_MAX: u16 = 16383;
/// Below this, a number is a bus identifier's (SAM-5, 4.7: peripheral device addressing), as most hosts write it.
const LUN_PERIPHERAL_END: u16 = 256;

/// The number of a logical unit without a hierarchy: 0 to 16383.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Lun(u16);

impl Lun {
    /// The logical unit with this number; none above 16383.
    #[must_use]
    pub const fn new(number: u16) -> Option<Self> {
        if number <= LUN_MAX { Some(Self(number)) } else { None }
    }

    /// Its number.
    #[must_use]
    pub const fn number(self) -> u16 {
        self.0
    }

    /// The eight bytes that PDUs and REPORT LUNS have (SAM-5, 4.7).
    #[must_use]
    pub const fn field(self) -> LunField {
        let [high, low] = self.0.to_be_bytes();
        let method = if self.0 < LUN_PERIPHERAL_END { 0 } else { 0x40 };
        LunField([method | high, low, 0, 0, 0, 0, 0, 0])
    }
}

impl fmt::Display for Lun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Lun {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let number = text.parse().ok().filter(|_| is_number);
        number.and_then(Self::new).ok_or_else(|| UrlError::Lun(text.to_owned()))
    }
}

/// What is wrong with a URL. Secrets are not shown.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// It begins with something else than `iscsi://`.
    #[error("a URL begins with iscsi://, as in {URL_FORM}")]
    Scheme,
    /// The host or the port.
    #[error("{} is no address of a portal, in {URL_FORM}", Quoted(.0))]
    Portal(String),
    /// The part with the target is not there.
    #[error("the URL names no target, in {URL_FORM}; `lunette discover` lists what a portal has")]
    NoTarget,
    /// The target's name.
    #[error("the target's name: {0}")]
    Target(String),
    /// The number of the logical unit.
    #[error("{} is no logical unit number; there are 0 to {LUN_MAX}, at the end of {URL_FORM}", Quoted(.0))]
    Lun(String),
    /// A `%` without two hexadecimal digits, or bytes that are no UTF-8.
    #[error("the {0} has a % that is not followed by two hexadecimal digits of UTF-8 text")]
    Encoding(&'static str),
    /// A key behind `?` that nobody knows.
    #[error("the URL has the key {}, which is none of {}", Quoted(.0), KEYS.join(", "))]
    Key(String),
    /// A value behind `?` that its key cannot have.
    #[error("{key}={} is not {expected}", Quoted(value))]
    Value {
        /// The key.
        key: &'static str,
        /// The value.
        value: String,
        /// What it may be.
        expected: &'static str,
    },
    /// A key twice.
    #[error("the URL has the key {0} twice")]
    Twice(&'static str),
    /// Parts that belong together.
    #[error("{0}")]
    Incomplete(&'static str),
    /// A secret that a key leads to.
    #[error("{0}")]
    Secret(String),
}

/// What an initiator's name is, for messages.
const INITIATOR_NAME: &str = "an iSCSI name, as iqn.2026-11.io.lunette:host";
/// The key whose value is a secret.
const TARGET_PASSWORD: &str = "target_password";
/// The keys behind `?`.
const KEYS: [&str; 21] = [
    "auth",
    "chap",
    "header_digest",
    "data_digest",
    "initiator_name",
    "target_user",
    TARGET_PASSWORD,
    "password_file",
    "password_env",
    "target_password_file",
    "target_password_env",
    "connections",
    "error_recovery_level",
    "security_stage",
    "isid",
    "initial_r2t",
    "immediate_data",
    "first_burst_length",
    "max_burst_length",
    "max_recv_data_segment_length",
    "max_outstanding_r2t",
];
/// The longest length that a key can say (RFC 7143, 13.12 to 13.14), and the shortest, in bytes.
const LENGTH_BYTES: (u32, u32) = (512, (1 << 24) - 1);

/// A URL, taken apart. Its secrets are not shown by `Debug` or `Display`.
///
/// | key | value | meaning |
/// |---|---|---|
/// | `auth` | `chap`, `none` | whether CHAP is required; with a user, it is offered in any case |
/// | `chap` | `md5`, `sha1`, `sha256`, `sha3-256`, several with commas | algorithms, the best first |
/// | `header_digest`, `data_digest` | `none`, `crc32c`, `none,crc32c`, `crc32c,none` | what is offered |
/// | `initiator_name` | a name | who we are |
/// | `target_user`, `target_password` | | what the target has to prove |
/// | `password_file`, `password_env` | a file, a variable | where the secret is instead of in the URL |
/// | `target_password_file`, `target_password_env` | the same | for the target's secret |
/// | `connections` | 1 to 32 | connections of the session |
/// | `error_recovery_level` | 0 to 2 | what is offered |
/// | `security_stage` | `always`, `skipped` | whether a login without a secret goes through the security stage from the start ([`Options::skips_security`]) |
/// | `isid` | up to 12 hexadecimal digits | the session's identifier, of which there may be one at a time |
/// | `initial_r2t`, `immediate_data` | `yes`, `no` | what is offered; both sides' offers make the result |
/// | `first_burst_length`, `max_burst_length`, `max_recv_data_segment_length` | 512 to 16777215, in bytes | the same |
/// | `max_outstanding_r2t` | 1 to 65535 | the same |
///
/// ```
/// use lunette_initiator::TargetUrl;
///
/// let url: TargetUrl = "iscsi://alice%secret%21@[2001:db8::7]/iqn.2026-11.io.lunette:disk0/3?auth=chap".parse()?;
/// assert_eq!((url.portal.to_string(), url.lun.number()), ("[2001:db8::7]:3260".to_owned(), 3));
/// assert_eq!(url.to_string(), "iscsi://alice@[2001:db8::7]:3260/iqn.2026-11.io.lunette:disk0/3");
/// # Ok::<(), lunette_initiator::UrlError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetUrl {
    /// Where the target is.
    pub portal: Portal,
    /// The target.
    pub target: IscsiName,
    /// The logical unit.
    pub lun: Lun,
    /// For CHAP.
    pub credentials: Option<Credentials>,
    /// Who we are, where the URL says it.
    pub initiator_name: Option<IscsiName>,
    /// Digests over headers, where the URL says something about them.
    pub header_digest: Option<DigestWish>,
    /// Digests over data.
    pub data_digest: Option<DigestWish>,
    /// Connections of the session.
    pub connections: Option<u16>,
    /// ErrorRecoveryLevel to offer.
    pub error_recovery_level: Option<u8>,
    /// Whether the security stage is left out where there is nothing to say in it.
    pub skips_security: Option<bool>,
    /// The session's identifier.
    pub isid: Option<Isid>,
    /// What is offered for the transfer of data.
    pub transfer: TransferWishes,
}

/// What a URL says of the keys of data transfer (RFC 7143, 13.10 to 13.17). Lengths are in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TransferWishes {
    /// InitialR2T.
    pub initial_r2t: Option<bool>,
    /// ImmediateData.
    pub immediate_data: Option<bool>,
    /// FirstBurstLength, 512 to 2^24 - 1.
    pub first_burst_length: Option<u32>,
    /// MaxBurstLength, 512 to 2^24 - 1.
    pub max_burst_length: Option<u32>,
    /// MaxRecvDataSegmentLength of this side, 512 to 2^24 - 1.
    pub max_recv_data_segment_length: Option<u32>,
    /// MaxOutstandingR2T, 1 to 65535.
    pub max_outstanding_r2t: Option<u16>,
}

impl TransferWishes {
    fn read(query: &Query) -> Result<Self, UrlError> {
        let length = |key| query.number(key, LENGTH_BYTES.0, LENGTH_BYTES.1, "a number from 512 to 16777215");
        let r2ts = query.number("max_outstanding_r2t", 1, u16::MAX.into(), "a number from 1 to 65535")?;
        let wishes = Self {
            initial_r2t: query.yes_or_no("initial_r2t")?,
            immediate_data: query.yes_or_no("immediate_data")?,
            first_burst_length: length("first_burst_length")?,
            max_burst_length: length("max_burst_length")?,
            max_recv_data_segment_length: length("max_recv_data_segment_length")?,
            max_outstanding_r2t: r2ts.map(|number| number as u16),
        };
        match (wishes.first_burst_length, wishes.max_burst_length) {
            // RFC 7143, 13.14.
            (Some(first), Some(max)) if first > max => {
                Err(UrlError::Incomplete("first_burst_length may not be longer than max_burst_length"))
            }
            _ => Ok(wishes),
        }
    }

    fn apply(&self, wishes: &mut Wishes) {
        wishes.initial_r2t = self.initial_r2t.unwrap_or(wishes.initial_r2t);
        wishes.immediate_data = self.immediate_data.unwrap_or(wishes.immediate_data);
        wishes.first_burst_length = self.first_burst_length.unwrap_or(wishes.first_burst_length);
        wishes.max_burst_length = self.max_burst_length.unwrap_or(wishes.max_burst_length);
        // Where the URL says only one of them, the other one makes room.
        if self.max_burst_length.is_some() {
            wishes.first_burst_length = wishes.first_burst_length.min(wishes.max_burst_length);
        } else {
            wishes.max_burst_length = wishes.max_burst_length.max(wishes.first_burst_length);
        }
        wishes.max_recv_data_segment_length =
            self.max_recv_data_segment_length.unwrap_or(wishes.max_recv_data_segment_length);
        wishes.max_outstanding_r2t = self.max_outstanding_r2t.unwrap_or(wishes.max_outstanding_r2t);
    }
}

impl TargetUrl {
    /// Options for a session with this target: the defaults, and what the URL says.
    #[must_use]
    pub fn options(&self) -> Options {
        let mut options = Options::new(self.target.clone(), self.portal.clone());
        options.credentials.clone_from(&self.credentials);
        if let Some(name) = &self.initiator_name {
            options.initiator_name = name.clone();
        }
        options.wishes.header_digest = self.header_digest.unwrap_or(options.wishes.header_digest);
        options.wishes.data_digest = self.data_digest.unwrap_or(options.wishes.data_digest);
        options.isid = self.isid;
        options.skips_security = self.skips_security.unwrap_or(options.skips_security);
        options.connections = self.connections.unwrap_or(options.connections);
        options.wishes.error_recovery_level =
            self.error_recovery_level.unwrap_or(options.wishes.error_recovery_level);
        self.transfer.apply(&mut options.wishes);
        options
    }
}

impl fmt::Display for TargetUrl {
    /// Without secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("iscsi://")?;
        if let Some(credentials) = &self.credentials {
            write!(f, "{}@", credentials.own.name.escape_debug())?;
        }
        write!(f, "{}/{}/{}", self.portal, self.target.as_str(), self.lun)
    }
}

impl FromStr for TargetUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let rest = text.strip_prefix("iscsi://").ok_or(UrlError::Scheme)?;
        let (rest, query) = rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
        let (user, rest) = rest.split_once('@').map_or((None, rest), |(user, rest)| (Some(user), rest));
        let (portal, path) = rest.split_once('/').ok_or(UrlError::NoTarget)?;
        let portal = portal_of(portal)?;
        let (target, lun) = path.rsplit_once('/').ok_or(UrlError::NoTarget)?;
        if target.is_empty() {
            return Err(UrlError::NoTarget);
        }
        let target = IscsiName::from_peer(&decoded(target, "target's name")?)
            .map_err(|error| UrlError::Target(error.to_string()))?;
        let query = Query::read(query.unwrap_or_default())?;
        let mut url = Self {
            portal,
            target,
            lun: lun.parse()?,
            credentials: query.credentials(user)?,
            initiator_name: None,
            header_digest: query.digest("header_digest")?,
            data_digest: query.digest("data_digest")?,
            connections: query
                .number("connections", 1, 32, "a number from 1 to 32")?
                .map(|number| number as u16),
            error_recovery_level: None,
            skips_security: query.skips_security()?,
            isid: query.isid()?,
            transfer: TransferWishes::read(&query)?,
        };
        let level = query.number("error_recovery_level", 0, 2, "0, 1 or 2")?;
        url.error_recovery_level = level.map(|level| level as u8);
        if let Some(name) = query.get("initiator_name") {
            url.initiator_name =
                Some(IscsiName::parse(name).map_err(|_| fault("initiator_name", name, INITIATOR_NAME))?);
        }
        Ok(url)
    }
}

/// A portal without a group.
fn portal_of(text: &str) -> Result<Portal, UrlError> {
    let portal: Option<Portal> = text.parse().ok();
    // Behind a user without an @ there is a secret; behind an @ in a secret, its rest.
    let shown = text.rsplit_once('@').map_or(text, |(_, host)| host);
    let mark = secret_mark(shown);
    portal
        .filter(|portal| portal.portal_group_tag.is_none() && mark.is_none())
        .ok_or_else(|| UrlError::Portal(mark.map_or_else(|| shown.to_owned(), |at| hidden_from(shown, at))))
}

/// What is shown of a URL that may be wrong in any way, as it was typed: its secrets are `***`, and rather something else, too, than one
/// of them not. Text without `://` and `@` is none, and stays as it is.
#[must_use]
pub fn without_secrets(text: &str) -> String {
    let is_scheme = |scheme: &str| scheme.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let (scheme, rest) = match text.find("://").filter(|end| is_scheme(&text[..*end])) {
        Some(end) => text.split_at(end + 3),
        None if text.contains('@') => ("", text),
        None => return text.to_owned(),
    };
    let (place, query) = rest.split_once('?').map_or((rest, None), |(place, query)| (place, Some(query)));
    let authority = place.split('/').next().unwrap_or_default();
    let shown = match place.rsplit_once('@') {
        Some((user, host)) => match user.find('%').or_else(|| user.find(':')) {
            Some(at) => format!("{}@{host}", hidden_from(user, at)),
            None => place.to_owned(),
        },
        // Whatever comes behind may be the secret's, with marks that should have been encoded.
        None => match secret_mark(authority) {
            Some(at) => return format!("{scheme}{}", hidden_from(authority, at)),
            None => place.to_owned(),
        },
    };
    let query = query.map(|query| {
        let parts: Vec<String> = query.split('&').map(shown_part).collect();
        format!("?{}", parts.join("&"))
    });
    format!("{scheme}{shown}{}", query.unwrap_or_default())
}

/// One of the parts behind `?`; of a key that nobody knows only its name.
fn shown_part(part: &str) -> String {
    match part.split_once('=') {
        Some((key, _)) if KEYS.contains(&key) && key != TARGET_PASSWORD => part.to_owned(),
        Some((key, _)) => format!("{key}=***"),
        None if part.is_empty() || KEYS.contains(&part) => part.to_owned(),
        None => "***".to_owned(),
    }
}

/// Where a secret begins in what should be a host and a port: the zone of an IPv6 address and a number are none.
fn secret_mark(authority: &str) -> Option<usize> {
    let is_of_address = |byte: u8| byte.is_ascii_hexdigit() || matches!(byte, b':' | b'.');
    if authority.matches(':').count() > 1 && authority.bytes().all(is_of_address) {
        return None;
    }
    let host = authority.find(']').filter(|_| authority.starts_with('[')).unwrap_or(0);
    let behind = &authority[host..];
    let port = behind.find(':').filter(|at| !behind[at + 1..].bytes().all(|byte| byte.is_ascii_digit()));
    behind.find('%').or(port).map(|at| host + at)
}

/// Text up to and with the mark at this place.
fn hidden_from(text: &str, at: usize) -> String {
    format!("{}***", &text[..=at])
}

/// What stands behind `?`.
struct Query(Vec<(&'static str, String)>);

impl Query {
    fn read(text: &str) -> Result<Self, UrlError> {
        let mut found: Vec<(&'static str, String)> = Vec::new();
        for part in text.split('&').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let unknown = || {
                // It may be the rest of a secret with an & that is not encoded.
                let is_rest = found.last().is_some_and(|(before, _)| *before == TARGET_PASSWORD);
                UrlError::Key(if is_rest { "***".to_owned() } else { name.to_owned() })
            };
            let key = KEYS.into_iter().find(|key| *key == name).ok_or_else(unknown)?;
            if found.iter().any(|(before, _)| *before == key) {
                return Err(UrlError::Twice(key));
            }
            found.push((key, decoded(value, key)?));
        }
        Ok(Self(found))
    }

    fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(name, _)| *name == key).map(|(_, value)| value.as_str())
    }

    fn digest(&self, key: &'static str) -> Result<Option<DigestWish>, UrlError> {
        self.get(key)
            .map(|value| match value {
                "none" => Ok(DigestWish::Refused),
                "crc32c" => Ok(DigestWish::Required),
                "none,crc32c" => Ok(DigestWish::Accepted),
                "crc32c,none" => Ok(DigestWish::Preferred),
                _ => Err(fault(key, value, "none, crc32c, \"none,crc32c\" or \"crc32c,none\"")),
            })
            .transpose()
    }

    fn skips_security(&self) -> Result<Option<bool>, UrlError> {
        const KEY: &str = "security_stage";
        self.get(KEY)
            .map(|value| match value {
                "always" => Ok(false),
                "skipped" => Ok(true),
                _ => Err(fault(KEY, value, "always or skipped")),
            })
            .transpose()
    }

    fn yes_or_no(&self, key: &'static str) -> Result<Option<bool>, UrlError> {
        self.get(key)
            .map(|value| match value {
                "yes" => Ok(true),
                "no" => Ok(false),
                _ => Err(fault(key, value, "yes or no")),
            })
            .transpose()
    }

    fn isid(&self) -> Result<Option<Isid>, UrlError> {
        let read = |value| {
            isid_from_hex(value)
                .ok_or_else(|| fault("isid", value, "a number of up to 12 hexadecimal digits"))
        };
        self.get("isid").map(read).transpose()
    }

    fn number(
        &self,
        key: &'static str,
        low: u32,
        high: u32,
        expected: &'static str,
    ) -> Result<Option<u32>, UrlError> {
        self.get(key)
            .map(|value| {
                let number = value.parse().ok().filter(|_| value.bytes().all(|byte| byte.is_ascii_digit()));
                number
                    .filter(|number| (low..=high).contains(number))
                    .ok_or_else(|| fault(key, value, expected))
            })
            .transpose()
    }

    fn algorithms(&self) -> Result<Option<Vec<ChapAlgorithm>>, UrlError> {
        let Some(value) = self.get("chap") else { return Ok(None) };
        let known = [
            ("md5", ChapAlgorithm::Md5),
            ("sha1", ChapAlgorithm::Sha1),
            ("sha256", ChapAlgorithm::Sha256),
            ("sha3-256", ChapAlgorithm::Sha3256),
        ];
        let algorithms: Option<Vec<_>> = value
            .split(',')
            .map(|name| known.iter().find(|(known, _)| *known == name).map(|(_, algorithm)| *algorithm))
            .collect();
        algorithms.map(Some).ok_or_else(|| fault("chap", value, "a list of md5, sha1, sha256 and sha3-256"))
    }

    /// The secret that one of three places has.
    fn secret(
        &self,
        given: Option<Secret>,
        file_key: &str,
        variable_key: &str,
    ) -> Result<Option<Secret>, UrlError> {
        let fault = |error: crate::SecretError| UrlError::Secret(error.to_string());
        match (given, self.get(file_key), self.get(variable_key)) {
            (given, None, None) => Ok(given),
            (None, Some(file), None) => secret_from_file(Path::new(file)).map(Some).map_err(fault),
            (None, None, Some(variable)) => secret_from_environment(variable).map(Some).map_err(fault),
            _ => Err(UrlError::Incomplete(
                "a secret comes from one place: the URL, a file, or the environment",
            )),
        }
    }

    fn credentials(&self, user: Option<&str>) -> Result<Option<Credentials>, UrlError> {
        let (name, given) = user.map(user_of).transpose()?.unwrap_or_default();
        let secret = self.secret(given, "password_file", "password_env")?;
        let of_target = self.get(TARGET_PASSWORD).map(Secret::new);
        let of_target = self.secret(of_target, "target_password_file", "target_password_env")?;
        let target = match (self.get("target_user"), of_target) {
            (None, None) => None,
            (Some(name), Some(secret)) => Some(ChapCredential { name: name.to_owned(), secret }),
            _ => return Err(UrlError::Incomplete("target_user and the target's secret belong together")),
        };
        let is_required = match self.get("auth") {
            None => false,
            Some("chap") => true,
            Some("none") if name.is_empty() => false,
            Some(value) => return Err(fault("auth", value, "chap, or none without a user")),
        };
        let algorithms = self.algorithms()?;
        let own = match (name.is_empty(), secret) {
            (false, Some(secret)) => ChapCredential { name, secret },
            (true, None) if !is_required && target.is_none() && algorithms.is_none() => return Ok(None),
            (false, None) => {
                return Err(UrlError::Incomplete(
                    "the URL has a user and no secret; password_file names a file with it",
                ));
            }
            (true, _) => return Err(UrlError::Incomplete("CHAP needs a user, in front of the host")),
        };
        let mut credentials = Credentials::new(own);
        credentials.is_required = is_required;
        credentials.target = target;
        if let Some(algorithms) = algorithms {
            credentials.algorithms = algorithms;
        }
        Ok(Some(credentials))
    }
}

fn user_of(text: &str) -> Result<(String, Option<Secret>), UrlError> {
    let parted = text.split_once('%').or_else(|| text.split_once(':'));
    let Some((name, secret)) = parted else { return Ok((text.to_owned(), None)) };
    let secret = decoded(secret, "secret")?;
    Ok((name.to_owned(), Some(Secret::new(secret)).filter(|secret| secret.length() > 0)))
}

fn fault(key: &'static str, value: &str, expected: &'static str) -> UrlError {
    UrlError::Value { key, value: value.to_owned(), expected }
}

/// Replaces `%` and two hexadecimal digits by the byte that they mean.
fn decoded(text: &str, what: &'static str) -> Result<String, UrlError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, behind)) = rest.split_first() {
        if byte != b'%' {
            bytes.push(byte);
            rest = behind;
            continue;
        }
        let digits = behind.first_chunk::<2>().ok_or(UrlError::Encoding(what))?;
        let [high, low] = digits.map(|digit| char::from(digit).to_digit(16));
        let (Some(high), Some(low)) = (high, low) else { return Err(UrlError::Encoding(what)) };
        // Two digits of four bits.
        bytes.push((high << 4 | low) as u8);
        rest = &behind[2..];
    }
    String::from_utf8(bytes).map_err(|_| UrlError::Encoding(what))
}

#[cfg(test)]
#[path = "url_tests.rs"]
mod tests;
