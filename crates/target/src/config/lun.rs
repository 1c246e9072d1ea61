//! `--lun [N=]STORE[,option...]`: one logical unit as a flag.
//!
//! Commas part the options; `\,` is a comma of a path or value, `\\` a backslash, and a backslash before anything else
//! is itself. Rules between logical units are not checked here (`super::Config::validate`).

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use lunette_block::{EngineKind, Provisioning, StoreSpec};
use lunette_scsi::ProtectionType;

use super::excerpt::Excerpt;
use super::size::Size;
use super::store::{self, SizeText, StoreText, StoreTextError};
use super::value::{BlockLength, InquiryText, LUN_MAX, LunNumber, Protection, ValueError, WriteMode};
use super::{Invalid, UnitConfig};

/// The options, for messages.
const OPTIONS: &str =
    "ro, removable, size=, block=, protection=, provisioning=, write=, engine=, serial=, vendor=, product=";

/// The longest serial number, in bytes: as volumes take it.
pub(super) const SERIAL_LENGTH_MAX: usize = 64;
/// T10 VENDOR IDENTIFICATION, in bytes (SPC-4, 6.6.2).
pub(super) const VENDOR_LENGTH_MAX: usize = 8;
/// PRODUCT IDENTIFICATION, in bytes (SPC-4, 6.6.2).
pub(super) const PRODUCT_LENGTH_MAX: usize = 16;

/// Why a `--lun` is not taken: what is wrong, what would be right, and the place with carets under it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}\n{excerpt}")]
pub struct LunError {
    message: String,
    excerpt: Excerpt,
}

/// A logical unit as a flag gives it; its number may still be open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LunFlag {
    number: Option<u16>,
    unit: UnitConfig,
}

/// What can be said of a logical unit beside its number and store, by flag or file.
#[derive(Debug, Default)]
pub(super) struct UnitOptions {
    pub(super) size: Option<Size>,
    pub(super) read_only: bool,
    pub(super) removable: bool,
    pub(super) block_length_bytes: Option<u32>,
    pub(super) protection: Option<ProtectionType>,
    pub(super) provisioning: Provisioning,
    pub(super) write_mode: WriteMode,
    pub(super) engine: EngineKind,
    pub(super) serial: Option<String>,
    pub(super) vendor: Option<String>,
    pub(super) product: Option<String>,
}

impl UnitOptions {
    /// Joins the options with the rest.
    ///
    /// # Errors
    /// There is a size, and the store has one already.
    pub(super) fn into_unit(self, lun: u16, mut store: StoreSpec) -> Result<UnitConfig, ValueError> {
        if let Some(size) = self.size {
            match &mut store {
                StoreSpec::File { create_bytes, .. } => *create_bytes = Some(size.bytes()),
                StoreSpec::BlockDevice { .. } => {
                    return Err(ValueError("a block device has its own size; leave size= out".into()));
                }
                StoreSpec::Memory { .. } => {
                    return Err(ValueError(
                        "the size of memory stands behind its colon, as in mem:1G".into(),
                    ));
                }
                StoreSpec::Null { .. } => {
                    return Err(ValueError("the size of null stands behind its colon, as in null:1T".into()));
                }
            }
        }
        Ok(UnitConfig {
            lun,
            store,
            read_only: self.read_only,
            removable: self.removable,
            block_length_bytes: self.block_length_bytes,
            protection: self.protection,
            provisioning: self.provisioning,
            write_mode: self.write_mode,
            engine: self.engine,
            serial: self.serial,
            vendor: self.vendor,
            product: self.product,
        })
    }
}

impl LunFlag {
    /// Gives every flag that has no number the lowest one that no other has, in the order of the flags.
    ///
    /// # Errors
    /// There are more flags than numbers.
    pub fn number_all(flags: Vec<Self>) -> Result<Vec<UnitConfig>, Invalid> {
        let taken: std::collections::HashSet<u16> = flags.iter().filter_map(|flag| flag.number).collect();
        let mut free = (0..=LUN_MAX).filter(|number| !taken.contains(number));
        flags
            .into_iter()
            .map(|flag| {
                let lun = flag.number.or_else(|| free.next()).ok_or_else(|| {
                    Invalid::new([], format!("a target has at most {} logical units", u32::from(LUN_MAX) + 1))
                })?;
                Ok(UnitConfig { lun, ..flag.unit })
            })
            .collect()
    }
}

/// Something wrong at a place of the flag, in bytes.
struct Fault {
    at: Range<usize>,
    message: String,
}

impl Fault {
    fn new(at: Range<usize>, message: impl fmt::Display) -> Self {
        Self { at, message: message.to_string() }
    }
}

impl FromStr for LunFlag {
    type Err = LunError;

    fn from_str(text: &str) -> Result<Self, LunError> {
        parse(text).map_err(|Fault { at, message }| LunError { message, excerpt: Excerpt::new(text, at) })
    }
}

fn parse(text: &str) -> Result<LunFlag, Fault> {
    let mut pieces = pieces(text).into_iter();
    let first = pieces.next().unwrap_or(0..0);
    let (number, store_at) = number(text, first)?;
    let store = store(text, store_at)?;
    let mut options = UnitOptions::default();
    let mut seen: Vec<&str> = Vec::new();
    let mut size_at = 0..0;
    for piece in pieces {
        let raw = &text[piece.clone()];
        let (key, value_at) = match raw.split_once('=') {
            Some((key, _)) => (key, Some(piece.start + key.len() + 1..piece.end)),
            None => (raw, None),
        };
        if seen.contains(&key) {
            return Err(Fault::new(piece, format_args!("{key} is given twice; once is enough")));
        }
        seen.push(key);
        if key == "size" {
            size_at = piece.clone();
        }
        option(text, piece, key, value_at, &mut options)?;
    }
    let unit = options.into_unit(0, store).map_err(|error| Fault::new(size_at, error))?;
    Ok(LunFlag { number, unit })
}

/// Parts the text at the commas that no backslash precedes. There is always one piece.
fn pieces(text: &str) -> Vec<Range<usize>> {
    let mut pieces = Vec::new();
    let mut start = 0;
    let mut bytes = text.bytes().enumerate();
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'\\' if text[at + 1..].starts_with([',', '\\']) => {
                bytes.next();
            }
            b',' => {
                pieces.push(start..at);
                start = at + 1;
            }
            _ => {}
        }
    }
    pieces.push(start..text.len());
    pieces
}

fn unescape(raw: &str) -> String {
    let mut text = String::with_capacity(raw.len());
    let mut characters = raw.chars().peekable();
    while let Some(character) = characters.next() {
        match characters.peek() {
            Some(&next @ (',' | '\\')) if character == '\\' => {
                text.push(next);
                characters.next();
            }
            _ => text.push(character),
        }
    }
    text
}

/// Takes `N=` from the front, if what precedes the first `=` is digits.
fn number(text: &str, first: Range<usize>) -> Result<(Option<u16>, Range<usize>), Fault> {
    match text[first.clone()].split_once('=') {
        Some((digits, _)) if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            let LunNumber(number) = digits.parse().map_err(|error| Fault::new(0..digits.len(), error))?;
            Ok((Some(number), first.start + digits.len() + 1..first.end))
        }
        _ => Ok((None, first)),
    }
}

fn store(text: &str, at: Range<usize>) -> Result<StoreSpec, Fault> {
    let (scheme, rest) = store::split_scheme(&text[at.clone()]);
    let rest_at = at.end - rest.len()..at.end;
    store::from_parts(scheme, &unescape(rest)).map_err(|error| match &error {
        StoreTextError::Scheme { scheme } => Fault::new(at.start..at.start + scheme.len(), &error),
        _ => Fault::new(rest_at, &error),
    })
}

fn option(
    text: &str,
    piece: Range<usize>,
    key: &str,
    value_at: Option<Range<usize>>,
    options: &mut UnitOptions,
) -> Result<(), Fault> {
    let (switch, meaning) = match key {
        "ro" => (Some(&mut options.read_only), "read-only"),
        "removable" => (Some(&mut options.removable), "a removable medium"),
        _ => (None, ""),
    };
    if let Some(switch) = switch {
        if let Some(at) = value_at {
            return Err(Fault::new(
                at,
                format_args!("{key} stands alone: it makes the logical unit {meaning}"),
            ));
        }
        *switch = true;
        return Ok(());
    }
    if !["size", "block", "protection", "provisioning", "write", "engine", "serial", "vendor", "product"]
        .contains(&key)
    {
        let message = match key {
            "" => format!("there is no option behind this comma; options are {OPTIONS}"),
            _ => {
                format!("{key:?} is not an option; options are {OPTIONS} (a comma of a path is written \\,)")
            }
        };
        return Err(Fault::new(piece.start..piece.start + key.len(), message));
    }
    let Some(at) = value_at else {
        return Err(Fault::new(piece, format_args!("{key} needs a value, as in {}", example(key))));
    };
    let value = unescape(&text[at.clone()]);
    set(key, &value, options).map_err(|message| Fault::new(at, message))
}

fn example(key: &str) -> &'static str {
    match key {
        "size" => "size=10G",
        "block" => "block=4096",
        "protection" => "protection=1",
        "provisioning" => "provisioning=thick",
        "write" => "write=back",
        "engine" => "engine=threads",
        "serial" => "serial=DISK-0001",
        "vendor" => "vendor=ACME",
        _ => "product=DISK",
    }
}

fn set(key: &str, value: &str, options: &mut UnitOptions) -> Result<(), String> {
    fn parsed<T: FromStr<Err: fmt::Display>>(value: &str) -> Result<T, String> {
        value.parse().map_err(|error: T::Err| error.to_string())
    }
    match key {
        "size" => options.size = Some(parsed(value)?),
        "block" => options.block_length_bytes = Some(parsed::<BlockLength>(value)?.0),
        "protection" => options.protection = Some(parsed::<Protection>(value)?.0),
        "provisioning" => options.provisioning = parsed(value)?,
        "write" => options.write_mode = parsed(value)?,
        "engine" => options.engine = parsed(value)?,
        "serial" => options.serial = Some(parsed::<InquiryText<SERIAL_LENGTH_MAX>>(value)?.0),
        "vendor" => options.vendor = Some(parsed::<InquiryText<VENDOR_LENGTH_MAX>>(value)?.0),
        _ => options.product = Some(parsed::<InquiryText<PRODUCT_LENGTH_MAX>>(value)?.0),
    }
    Ok(())
}

impl fmt::Display for LunFlag {
    /// Text that parses to the same flag, as long as the path is UTF-8. Options that have their default are left out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = &self.unit;
        if let Some(number) = self.number {
            write!(f, "{number}=")?;
        }
        f.write_str(&escape(&StoreText(&unit.store).to_string()))?;
        if let StoreSpec::File { create_bytes: Some(bytes), .. } = unit.store {
            write!(f, ",size={}", SizeText(bytes))?;
        }
        if unit.read_only {
            f.write_str(",ro")?;
        }
        if unit.removable {
            f.write_str(",removable")?;
        }
        if let Some(bytes) = unit.block_length_bytes {
            write!(f, ",block={bytes}")?;
        }
        if let Some(protection) = unit.protection {
            write!(f, ",protection={}", protection.number())?;
        }
        if unit.provisioning != Provisioning::default() {
            write!(f, ",provisioning={}", unit.provisioning)?;
        }
        if unit.write_mode != WriteMode::default() {
            write!(f, ",write={}", unit.write_mode)?;
        }
        if unit.engine != EngineKind::default() {
            write!(f, ",engine={}", unit.engine)?;
        }
        for (key, value) in [("serial", &unit.serial), ("vendor", &unit.vendor), ("product", &unit.product)] {
            if let Some(value) = value {
                write!(f, ",{key}={}", escape(value))?;
            }
        }
        Ok(())
    }
}

fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace(',', "\\,")
}

#[cfg(test)]
mod tests;
