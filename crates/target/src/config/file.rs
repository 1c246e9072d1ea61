//! `lunette.toml`: everything that the flags say, and the limits. Its words are those of the flags.
//!
//! Relative paths count from the directory of the file. Every error has the line, the column, the key and what is
//! allowed there.

use std::fmt;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use lunette_block::{EngineKind, Provisioning, StoreSpec};
use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::access_table::RawAccess;
use super::credentials::{Credentials, RawDiscovery, RawMutual, RawRules, RawUser, hide};
use super::excerpt::Excerpt;
use super::isns::RawIsns;
use super::limits::Limits;
use super::lun::{PRODUCT_LENGTH_MAX, SERIAL_LENGTH_MAX, UnitOptions, VENDOR_LENGTH_MAX};
use super::port_group::RawPortGroup;
use super::portal::{Group, PortalConfig, RawPortal, RawRedirect};
use super::reactors::Reactors;
use super::size::Size;
use super::store::{self, StoreTextError};
use super::value::{Alias, BlockLength, InquiryText, LunNumber, Parsed, Protection, ValueError, WriteMode};
use super::{Config, Invalid, Step, TargetConfig, UnitConfig, default_portals, parse_target_name};

/// The longest file that is read, in bytes: thousands of logical units.
const FILE_LENGTH_MAX: u64 = 1 << 22;

/// Why a configuration file is not taken.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// It is too long to be a configuration.
    #[error("{} is longer than {FILE_LENGTH_MAX} bytes; is it really a configuration?", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
    },
    /// It is not UTF-8.
    #[error("{}:{line}: there is a byte here that is not UTF-8 text", path.display())]
    NotText {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// Something in it is wrong.
    #[error("{}:{line}:{column}: {}{message}\n{excerpt}", path.display(), Key(.key))]
    Content {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The column in characters, from 1.
        column: usize,
        /// The key at fault with those of the tables around it, parted by dots; empty where there is none.
        key: String,
        /// What is wrong and what is allowed.
        message: String,
        /// The line, with the place marked.
        excerpt: Box<Excerpt>,
    },
}

/// A key in front of a message.
struct Key<'a>(&'a str);

impl fmt::Display for Key<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, "{}: ", self.0) }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawConfig {
    portals: Option<Vec<Parsed<PortalConfig>>>,
    #[serde(default)]
    portal: Vec<RawPortal>,
    #[serde(default)]
    target: Vec<RawTarget>,
    #[serde(default)]
    discovery: RawDiscovery,
    #[serde(default)]
    chap: RawRules,
    #[serde(default)]
    limits: Limits,
    #[serde(default)]
    reactors: Reactors,
    #[serde(default)]
    large_pages: bool,
    state_directory: Option<PathBuf>,
    trace_directory: Option<PathBuf>,
    #[serde(default)]
    task_times: bool,
    #[serde(default)]
    isns: RawIsns,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTarget {
    name: Parsed<TargetName>,
    alias: Option<Parsed<Alias>>,
    #[serde(default)]
    lun: Vec<RawUnit>,
    #[serde(default)]
    user: Vec<Spanned<RawUser>>,
    mutual: Option<Spanned<RawMutual>>,
    #[serde(default)]
    access: Vec<Spanned<RawAccess>>,
    #[serde(default)]
    port_group: Vec<RawPortGroup>,
    #[serde(default)]
    groups: Vec<Parsed<Group>>,
    #[serde(default)]
    scsi_events: bool,
    redirect: Option<Spanned<RawRedirect>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawUnit {
    number: Parsed<LunNumber>,
    store: Parsed<Store>,
    size: Option<Spanned<Parsed<Size>>>,
    #[serde(default)]
    ro: bool,
    #[serde(default)]
    removable: bool,
    block: Option<Parsed<BlockLength>>,
    protection: Option<Parsed<Protection>>,
    provisioning: Option<Parsed<Provisioning>>,
    write: Option<Parsed<WriteMode>>,
    engine: Option<Parsed<EngineKind>>,
    serial: Option<Parsed<InquiryText<SERIAL_LENGTH_MAX>>>,
    vendor: Option<Parsed<InquiryText<VENDOR_LENGTH_MAX>>>,
    product: Option<Parsed<InquiryText<PRODUCT_LENGTH_MAX>>>,
}

#[derive(Debug)]
struct TargetName(String);

impl FromStr for TargetName {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        parse_target_name(text).map(Self)
    }
}

#[derive(Debug)]
struct Store(StoreSpec);

impl FromStr for Store {
    type Err = StoreTextError;

    /// The text is taken as it is: no comma ends it here, so nothing is escaped.
    fn from_str(text: &str) -> Result<Self, StoreTextError> {
        let (scheme, rest) = store::split_scheme(text);
        store::from_parts(scheme, rest).map(Self)
    }
}

/// Something wrong at a place of the file, in bytes.
pub(super) struct Fault {
    pub(super) at: Range<usize>,
    pub(super) message: String,
}

impl Config {
    /// Reads and checks a configuration file.
    ///
    /// # Errors
    /// [`FileError`] names the file and, where it can, line, column and key.
    pub fn read(path: &Path) -> Result<Self, FileError> {
        let failed = |source| FileError::Read { path: path.to_owned(), source };
        let mut bytes = Vec::new();
        let file = std::fs::File::open(path).map_err(failed)?;
        io::Read::read_to_end(&mut io::Read::take(file, FILE_LENGTH_MAX + 1), &mut bytes).map_err(failed)?;
        if bytes.len() as u64 > FILE_LENGTH_MAX {
            return Err(FileError::TooLong { path: path.to_owned() });
        }
        let text = str::from_utf8(&bytes).map_err(|error| {
            let line = 1 + bytes[..error.valid_up_to()].iter().filter(|&&byte| byte == b'\n').count();
            FileError::NotText { path: path.to_owned(), line }
        })?;
        Self::from_toml(text, path)
    }

    /// Takes the text of a configuration file. `path` is where it comes from: errors name it, and relative paths in the
    /// text count from its directory.
    ///
    /// # Errors
    /// [`FileError::Content`].
    pub fn from_toml(text: &str, path: &Path) -> Result<Self, FileError> {
        let directory = path.parent().unwrap_or(Path::new(""));
        parse(text, directory).map_err(|fault| content_error(text, path, fault))
    }
}

fn parse(text: &str, directory: &Path) -> Result<Config, Fault> {
    let whole = || 0..text.len();
    let failed = |error: toml::de::Error| Fault {
        at: error.span().unwrap_or_else(whole),
        message: in_plain_words(error.message()),
    };
    let table = DeTable::parse(text).map_err(failed)?;
    let raw: RawConfig = toml::from_str(text).map_err(failed)?;
    let chap = raw.chap.into_rules();
    let credentials = Credentials { directory, length_min: chap.secret_length_min_bytes };
    let config = Config {
        portals: portals_of(raw.portals, raw.portal)?,
        targets: raw
            .target
            .into_iter()
            .map(|target| {
                let Parsed(TargetName(name)) = target.name;
                let units = target.lun.into_iter().map(|unit| unit_of(unit, directory));
                let units = units.collect::<Result<_, Fault>>()?;
                let alias = target.alias.map(|Parsed(Alias(alias))| alias);
                let chap = credentials.read(target.user, target.mutual, Some(&name))?;
                let access =
                    target.access.into_iter().map(RawAccess::into_rule).collect::<Result<_, Fault>>()?;
                let port_groups = target.port_group.into_iter().map(Into::into).collect();
                let groups = target.groups.into_iter().map(|Parsed(Group(group))| group).collect();
                let redirect = target.redirect.map(RawRedirect::into_redirection).transpose()?;
                let scsi_events = target.scsi_events;
                Ok(TargetConfig {
                    name,
                    alias,
                    units,
                    chap,
                    access,
                    port_groups,
                    groups,
                    scsi_events,
                    redirect,
                })
            })
            .collect::<Result<_, Fault>>()?,
        discovery_scope: raw.discovery.scope.map(|Parsed(scope)| scope).unwrap_or_default(),
        discovery: credentials.read(raw.discovery.user, raw.discovery.mutual, None)?,
        chap,
        limits: raw.limits,
        reactors: raw.reactors,
        large_pages: raw.large_pages,
        state_directory: raw.state_directory.map(|path| directory.join(path)),
        trace_directory: raw.trace_directory.map(|path| directory.join(path)),
        task_times: raw.task_times,
        isns: raw.isns.into(),
    };
    config.validate().map_err(|Invalid { place, message }| Fault {
        at: span_of(table.get_ref(), &place).unwrap_or(0..0),
        message,
    })?;
    Ok(config)
}

/// The portals of the list, which come first, and of the tables.
fn portals_of(
    listed: Option<Vec<Parsed<PortalConfig>>>,
    tables: Vec<RawPortal>,
) -> Result<Vec<PortalConfig>, Fault> {
    if listed.is_none() && tables.is_empty() {
        return Ok(default_portals());
    }
    let mut portals: Vec<PortalConfig> = listed.into_iter().flatten().map(|Parsed(portal)| portal).collect();
    for table in tables {
        portals.extend(table.resolve()?);
    }
    Ok(portals)
}

fn unit_of(raw: RawUnit, directory: &Path) -> Result<UnitConfig, Fault> {
    let (Parsed(LunNumber(lun)), Parsed(Store(mut store))) = (raw.number, raw.store);
    if let StoreSpec::File { path, .. } | StoreSpec::BlockDevice { path } = &mut store {
        *path = directory.join(&*path);
    }
    let size_at = raw.size.as_ref().map_or(0..0, Spanned::span);
    let options = UnitOptions {
        size: raw.size.map(|size| size.into_inner().0),
        read_only: raw.ro,
        removable: raw.removable,
        block_length_bytes: raw.block.map(|Parsed(BlockLength(bytes))| bytes),
        protection: raw.protection.map(|Parsed(Protection(kind))| kind),
        provisioning: raw.provisioning.map(|Parsed(provisioning)| provisioning).unwrap_or_default(),
        write_mode: raw.write.map(|Parsed(mode)| mode).unwrap_or_default(),
        engine: raw.engine.map(|Parsed(engine)| engine).unwrap_or_default(),
        serial: raw.serial.map(|Parsed(InquiryText(text))| text),
        vendor: raw.vendor.map(|Parsed(InquiryText(text))| text),
        product: raw.product.map(|Parsed(InquiryText(text))| text),
    };
    options.into_unit(lun, store).map_err(|ValueError(message)| Fault { at: size_at, message })
}

/// Says the two most frequent mistakes in our words; the rest reads well enough as it comes.
fn in_plain_words(message: &str) -> String {
    let unquoted = |text: &str| text.replace('`', "");
    if let Some(rest) = message.strip_prefix("unknown field ") {
        if let Some((found, known)) = rest.split_once(", expected ") {
            let known = known.strip_prefix("one of ").unwrap_or(known);
            return format!(
                "{} is not a key here; there are {}",
                unquoted(found),
                unquoted(&known.replace(" or ", ", "))
            );
        }
    } else if let Some(key) = message.strip_prefix("missing field ") {
        return format!("the key {} is missing in this table", unquoted(key));
    }
    message.to_owned()
}

fn content_error(text: &str, path: &Path, Fault { at, message }: Fault) -> FileError {
    let start = text.floor_char_boundary(at.start.min(text.len()));
    let line_start = text[..start].rfind('\n').map_or(0, |at| at + 1);
    let line_end = text[start..].find('\n').map_or(text.len(), |at| start + at);
    let line = text[line_start..line_end].trim_end_matches('\r');
    let key = DeTable::parse(text).map_or_else(|_| String::new(), |table| key_at(table.get_ref(), start));
    let (line, message) = hide(line, message);
    FileError::Content {
        path: path.to_owned(),
        line: 1 + text[..line_start].matches('\n').count(),
        column: 1 + text[line_start..start].chars().count(),
        key,
        message,
        excerpt: Box::new(Excerpt::new(&line, start - line_start..at.end.max(start) - line_start)),
    }
}

/// The keys around and at a byte, parted by dots.
fn key_at(table: &DeTable<'_>, at: usize) -> String {
    for (key, value) in table {
        let below = match value.get_ref() {
            DeValue::Table(table) => key_at(table, at),
            DeValue::Array(array) => array
                .iter()
                .filter_map(|element| element.get_ref().as_table())
                .map(|table| key_at(table, at))
                .find(|below| !below.is_empty())
                .unwrap_or_default(),
            _ => String::new(),
        };
        if !below.is_empty() {
            return format!("{}.{below}", key.get_ref());
        }
        if key.span().contains(&at) || value.span().contains(&at) {
            return key.get_ref().to_string();
        }
    }
    String::new()
}

/// Where a value is in the text. If a key on the way is missing, where its table is.
fn span_of(table: &DeTable<'_>, place: &[Step]) -> Option<Range<usize>> {
    let (first, rest) = place.split_first()?;
    let Step::Key(key) = first else { return None };
    let mut value = table.get(key.as_str())?;
    for step in rest {
        let next = match step {
            Step::Key(key) => value.get_ref().as_table().and_then(|table| table.get(key.as_str())),
            Step::Index(index) => value.get_ref().as_array().and_then(|array| array.get(*index)),
        };
        match next {
            Some(next) => value = next,
            None => break,
        }
    }
    Some(value.span())
}

#[cfg(test)]
mod tests;
