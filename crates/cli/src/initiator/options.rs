//! The flags of the initiator's commands.

use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use lunette_initiator::{TargetUrl, isid_from_hex};
use lunette_scsi::client::reservations::ReservationType;
use lunette_wire::Isid;

use super::access::{AccessOptions, CopyAccess, TimeOptions};
use super::amount::{Amount, RangeOptions};
use super::attach::AttachOptions;
use super::detach::DetachOptions;
use super::discover::DiscoverOptions;
use super::pattern::Pattern;
use super::stream::DEPTH_MAX;

/// What every command of the initiator ends with.
pub(crate) const EXIT_STATUS: &str = "\
Exit status:
  0  done
  1  something on this machine: a file, the standard output
  2  the command line is wrong
  3  no session: the target cannot be reached, or refuses or breaks off the login for another reason than the next
  4  authentication failed
  5  the target refused a command, or did not follow the standard
  6  data differ";

/// What a URL may be.
pub(crate) const URL_HELP: &str = "\
iscsi://[USER[%SECRET]@]HOST[:PORT]/TARGET/LUN[?KEY=VALUE&...]

A user and a secret are for CHAP. Who runs ps sees a secret in a URL; password_file=PATH or password_env=VARIABLE \
name another place for it. Other keys: auth=chap|none, chap=md5,sha1,sha256,sha3-256, header_digest and \
data_digest=none|crc32c|none,crc32c|crc32c,none, initiator_name, target_user, target_password (with _file and _env, \
too), connections=1..32, error_recovery_level=0..2, security_stage=always|skipped (without a secret), isid=HEX (the session's \
identifier: one session at a time), initial_r2t and immediate_data=yes|no, first_burst_length, max_burst_length and \
max_recv_data_segment_length=512..16777215, max_outstanding_r2t=1..65535.";

/// The commands of the initiator.
#[derive(Debug, Subcommand)]
pub(crate) enum InitiatorCommand {
    /// List the targets that a portal or an iSNS server tells of, with their units and sizes
    #[command(after_help = EXIT_STATUS)]
    Discover(DiscoverOptions),
    /// Log in and tell each phase with its time, and each key with its result
    #[command(after_help = EXIT_STATUS)]
    LoginTrace(UrlOptions),
    /// Tell all about a disk: names, size, limits, provisioning, modes, paths, reservations
    #[command(after_help = EXIT_STATUS)]
    Info(InfoOptions),
    /// Read a disk, or a part of it, to a file or the standard output
    #[command(after_help = EXIT_STATUS)]
    Read(ReadOptions),
    /// Write a file, the standard input or a pattern to a disk, and make it stable
    #[command(after_help = EXIT_STATUS)]
    Write(WriteOptions),
    /// Compare a disk with a file or a pattern, and name the first block that differs
    #[command(after_help = EXIT_STATUS)]
    Verify(VerifyOptions),
    /// Erase a disk or a part of it: give space back, write zeros, or SANITIZE
    #[command(after_help = EXIT_STATUS)]
    Erase(EraseOptions),
    /// Compute the checksum of a disk, or a part of it
    #[command(after_help = EXIT_STATUS)]
    Checksum(ChecksumOptions),
    /// Copy a disk or an image file to a disk or an image file
    ///
    /// A disk is an iscsi:// URL, anything else a file. What holds nothing at the source, by GET LBA STATUS or as a hole,
    /// is not transferred; at the destination it reads as zeros afterwards.
    #[command(after_help = EXIT_STATUS)]
    Copy(CopyOptions),
    /// Look at and change persistent reservations, with the words of sg_persist
    ///
    /// A registration belongs to this initiator's name and a session identifier, which --isid gives; the same every time
    /// unless told otherwise, so that the next call is the same I_T nexus again.
    #[command(after_help = EXIT_STATUS)]
    Reserve(ReserveOptions),
    /// Show a disk to programs that know no iSCSI, until SIGTERM or SIGINT (ctrl-C)
    ///
    /// It is a file in a directory of its own, or an NBD export. A signal detaches it: requests that are there are carried out,
    /// everything is flushed, the session is logged out. A second one ends it at once.
    #[command(after_help = EXIT_STATUS)]
    Attach(AttachOptions),
    /// End an attach, once everything is stable, and tell how that went; or list all
    #[command(after_help = EXIT_STATUS)]
    Detach(DetachOptions),
}

impl InitiatorCommand {
    /// It goes on until it is told to end.
    pub(crate) const fn stays(&self) -> bool {
        matches!(self, Self::Attach(_))
    }

    /// The result is to be told as JSON.
    pub(crate) fn json(&self) -> bool {
        match self {
            InitiatorCommand::Discover(options) => options.json,
            InitiatorCommand::LoginTrace(options) => options.json,
            InitiatorCommand::Info(options) => options.json,
            InitiatorCommand::Read(options) => options.json,
            InitiatorCommand::Write(options) => options.json,
            InitiatorCommand::Verify(options) => options.json,
            InitiatorCommand::Erase(options) => options.json,
            InitiatorCommand::Checksum(options) => options.json,
            InitiatorCommand::Copy(options) => options.json,
            InitiatorCommand::Reserve(options) => options.json,
            InitiatorCommand::Attach(options) => options.json,
            InitiatorCommand::Detach(options) => options.json,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct InfoOptions {
    /// The disk
    #[arg(value_name = "URL", long_help = URL_HELP)]
    pub(crate) url: TargetUrl,
    #[command(flatten)]
    pub(crate) access: AccessOptions,
    /// Tell it as one line of JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct UrlOptions {
    /// The disk
    #[arg(value_name = "URL", long_help = URL_HELP)]
    pub(crate) url: TargetUrl,
    /// Tell it as one line of JSON
    #[arg(long)]
    pub(crate) json: bool,
}

fn depth(text: &str) -> Result<u32, String> {
    let depth = text.parse().ok().filter(|depth| (1..=DEPTH_MAX).contains(depth));
    depth.ok_or_else(|| format!("give a number from 1 to {DEPTH_MAX}"))
}

#[derive(Debug, Args)]
pub(crate) struct ReadOptions {
    /// The disk
    #[arg(value_name = "URL", long_help = URL_HELP)]
    pub(crate) url: TargetUrl,
    #[command(flatten)]
    pub(crate) access: AccessOptions,
    #[command(flatten)]
    pub(crate) range: RangeOptions,
    /// Write to this file, which must not exist; - is the standard output
    #[arg(long, short, value_name = "FILE", default_value = "-")]
    pub(crate) output: PathBuf,
    /// Overwrite the file if there is one
    #[arg(long)]
    pub(crate) force: bool,
    /// Commands under way at once; without it as many as keep the way to the disk busy
    #[arg(long, value_name = "N", value_parser = depth)]
    pub(crate) depth: Option<u32>,
    /// Tell on the standard error, as one line of JSON, what was read
    #[arg(long)]
    pub(crate) json: bool,
}

/// Where the data is from.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("source").required(true))]
pub(crate) struct SourceOptions {
    /// The data is in this file; - is the standard input
    #[arg(long, short, value_name = "FILE", group = "source")]
    pub(crate) input: Option<PathBuf>,
    /// The data is a pattern: zeros, ones, address (each eight bytes hold their offset), random, random:SEED, hex:BYTES
    #[arg(long, value_name = "PATTERN", group = "source")]
    pub(crate) pattern: Option<Pattern>,
}

#[derive(Debug, Args)]
pub(crate) struct WriteOptions {
    /// The disk
    #[arg(value_name = "URL", long_help = URL_HELP)]
    pub(crate) url: TargetUrl,
    #[command(flatten)]
    pub(crate) access: AccessOptions,
    #[command(flatten)]
    pub(crate) range: RangeOptions,
    #[command(flatten)]
    pub(crate) source: SourceOptions,
    /// Have each write on stable storage before it is answered (FUA), instead of all of them at the end
    #[arg(long)]
    pub(crate) fua: bool,
    /// Commands under way at once; without it as many as keep the way to the disk busy
    #[arg(long, value_name = "N", value_parser = depth)]
    pub(crate) depth: Option<u32>,
    /// Tell it as one line of JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct VerifyOptions {
    /// The disk
    #[arg(value_name = "URL", long_help = URL_HELP)]
    pub(crate) url: TargetUrl,
    #[command(flatten)]
    pub(crate) access: AccessOptions,
    #[command(flatten)]
    pub(crate) range: RangeOptions,
    #[command(flatten)]
    pub(crate) source: SourceOptions,
    /// Commands under way at once; without it as many as keep the way to the disk busy
    #[arg(long, value_name = "N", value_parser = depth)]
    pub(crate) depth: Option<u32>,
    /// Tell it as one line of JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// How to erase.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum EraseMethod {
    /// Give the space back (UNMAP); what is read there afterwards is up to the target, mostly zeros
    Unmap,
    /// Write zeros (WRITE SAME), giving space back where that can be
    Zeros,
    /// SANITIZE by overwriting the whole disk with zeros once: nothing stops it, not even a loss of power
    SanitizeOverwrite,
    /// SANITIZE by the medium's own erasure of the whole disk
    SanitizeBlock,
}

#[derive(Debug, Args)]
pub(crate) struct EraseOptions {
    /// The disk
    #[arg(value_name = "URL", long_help = URL_HELP)]
    pub(crate) url: TargetUrl,
    #[command(flatten)]
    pub(crate) access: AccessOptions,
    #[command(flatten)]
    pub(crate) range: RangeOptions,
    /// How
    #[arg(long, value_enum, value_name = "METHOD", default_value = "zeros")]
    pub(crate) method: EraseMethod,
    /// Do it without asking
    #[arg(long)]
    pub(crate) yes: bool,
    /// Tell it as one line of JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Which checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Algorithm {
    /// SHA-256, as sha256sum computes it
    Sha256,
    /// CRC32C (Castagnoli)
    Crc32c,
}

#[derive(Debug, Args)]
pub(crate) struct ChecksumOptions {
    /// The disk
    #[arg(value_name = "URL", long_help = URL_HELP)]
    pub(crate) url: TargetUrl,
    #[command(flatten)]
    pub(crate) access: AccessOptions,
    #[command(flatten)]
    pub(crate) range: RangeOptions,
    /// Which
    #[arg(long, value_enum, value_name = "ALGORITHM", default_value = "sha256")]
    pub(crate) algorithm: Algorithm,
    /// Commands under way at once; without it as many as keep the way to the disk busy
    #[arg(long, value_name = "N", value_parser = depth)]
    pub(crate) depth: Option<u32>,
    /// Tell it as one line of JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// One end of a copy.
#[derive(Debug, Clone)]
pub(crate) enum End {
    Disk(Box<TargetUrl>),
    File(PathBuf),
}

impl std::str::FromStr for End {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.starts_with("iscsi:") {
            return text
                .parse()
                .map(|url| End::Disk(Box::new(url)))
                .map_err(|error: lunette_initiator::UrlError| error.to_string());
        }
        if text.is_empty() || text.contains("://") {
            return Err("give an iscsi:// URL, or a file".to_owned());
        }
        if text == "-" {
            return Err("a copy has no pipes: see `lunette read` and `lunette write`".to_owned());
        }
        Ok(End::File(text.into()))
    }
}

#[derive(Debug, Args)]
pub(crate) struct CopyOptions {
    /// From: an iscsi:// URL or a file
    #[arg(value_name = "SRC", long_help = URL_HELP)]
    pub(crate) source: End,
    /// To: an iscsi:// URL or a file, which is created
    #[arg(value_name = "DST")]
    pub(crate) destination: End,
    #[command(flatten)]
    pub(crate) access: CopyAccess,
    /// Overwrite the destination if it is a file that exists
    #[arg(long)]
    pub(crate) force: bool,
    /// Keep a record of how far it is in this file, and go on from there if the file is there; it is removed at the end
    #[arg(long, value_name = "FILE")]
    pub(crate) resume: Option<PathBuf>,
    /// Read both again at the end and compare them
    #[arg(long)]
    pub(crate) verify: bool,
    /// Transfer what holds nothing, too
    #[arg(long)]
    pub(crate) no_sparse: bool,
    /// Commands under way at once, on each side; without it as many as keep the way to the disk busy
    #[arg(long, value_name = "N", value_parser = depth)]
    pub(crate) depth: Option<u32>,
    /// No progress on the standard error
    #[arg(long, short)]
    pub(crate) quiet: bool,
    /// Tell it as one line of JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// A number in hexadecimal, with or without 0x: as sg_persist takes keys.
fn key(text: &str) -> Result<u64, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    u64::from_str_radix(digits, 16)
        .ok()
        .filter(|_| is_number)
        .ok_or_else(|| "give a key of 1 to 16 hexadecimal digits".to_owned())
}

fn reservation_type(text: &str) -> Result<ReservationType, String> {
    let code = u8::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).ok();
    code.and_then(ReservationType::from_code).ok_or_else(|| {
        "give 1 (write exclusive), 3 (exclusive access), 5, 6 (the same for registrants), 7 or 8 (for all registrants)"
            .to_owned()
    })
}

fn isid(text: &str) -> Result<Isid, String> {
    isid_from_hex(text).ok_or_else(|| "give an ISID of up to 12 hexadecimal digits".to_owned())
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("action").required(true))]
#[allow(clippy::struct_excessive_bools, reason = "sg_persist has a flag for each action")]
pub(crate) struct ReserveOptions {
    /// The disk
    #[arg(value_name = "URL", long_help = URL_HELP)]
    pub(crate) url: TargetUrl,
    #[command(flatten)]
    pub(crate) access: TimeOptions,
    /// List the registered keys
    #[arg(long, short = 'k', group = "action")]
    pub(crate) read_keys: bool,
    /// Tell what is reserved
    #[arg(long, short = 'r', group = "action")]
    pub(crate) read_reservation: bool,
    /// Tell what the unit's reservations can do
    #[arg(long, short = 'c', group = "action")]
    pub(crate) report_capabilities: bool,
    /// List the registrations with their initiators
    #[arg(long, short = 's', group = "action")]
    pub(crate) read_full_status: bool,
    /// Register the key of --param-sark (0 takes the registration back); --param-rk is the present one
    #[arg(long, short = 'G', group = "action", requires = "param_sark")]
    pub(crate) register: bool,
    /// The same, whatever is registered now
    #[arg(long, short = 'I', group = "action", requires = "param_sark")]
    pub(crate) register_ignore: bool,
    /// Give the reservation to the initiator port of --transport-id, with the key of --param-sark
    #[arg(long, short = 'M', group = "action", requires_all = ["param_rk", "param_sark", "transport_id", "relative_target_port"])]
    pub(crate) register_move: bool,
    /// Reserve, with --prout-type
    #[arg(long, short = 'R', group = "action", requires_all = ["param_rk", "prout_type"])]
    pub(crate) reserve: bool,
    /// Release what was reserved with this --prout-type
    #[arg(long, short = 'L', group = "action", requires_all = ["param_rk", "prout_type"])]
    pub(crate) release: bool,
    /// Remove the reservation and all registrations
    #[arg(long, short = 'C', group = "action", requires = "param_rk")]
    pub(crate) clear: bool,
    /// Take the reservation from, or the registration of, who has the key of --param-sark
    #[arg(long, short = 'P', group = "action", requires_all = ["param_rk", "param_sark", "prout_type"])]
    pub(crate) preempt: bool,
    /// The same, aborting their commands
    #[arg(long, short = 'A', group = "action", requires_all = ["param_rk", "param_sark", "prout_type"])]
    pub(crate) preempt_abort: bool,
    /// Say what is reserved where the target has lost it: we register the key of --param-sark, and reserve
    #[arg(long, short = 'z', group = "action", requires_all = ["param_sark", "prout_type"], conflicts_with = "param_rk")]
    pub(crate) replace_lost: bool,
    /// Our registered key, in hexadecimal
    #[arg(long, short = 'K', value_name = "KEY", value_parser = key)]
    pub(crate) param_rk: Option<u64>,
    /// The service action's key, in hexadecimal
    #[arg(long, short = 'S', value_name = "KEY", value_parser = key)]
    pub(crate) param_sark: Option<u64>,
    /// 1 write exclusive, 3 exclusive access, 5 and 6 the same for all who are registered, 7 and 8 the same with all
    /// registrants as holders
    #[arg(long, short = 'T', value_name = "TYPE", value_parser = reservation_type)]
    pub(crate) prout_type: Option<ReservationType>,
    /// Register through all target ports
    #[arg(long, short = 'Y')]
    pub(crate) param_alltgpt: bool,
    /// Keep registrations through a loss of power
    #[arg(long, short = 'Z')]
    pub(crate) param_aptpl: bool,
    /// With --register-move: take our registration back
    #[arg(long, short = 'U', requires = "register_move")]
    pub(crate) param_unreg: bool,
    /// With --register-move: the relative target port of the other path
    #[arg(long, short = 'Q', value_name = "PORT")]
    pub(crate) relative_target_port: Option<u16>,
    /// An initiator port: NAME,i,0xISID; to register along, where it may be repeated, or to move to
    #[arg(long, short = 'X', value_name = "PORT")]
    pub(crate) transport_id: Vec<String>,
    /// The session identifier that registrations belong to, in hexadecimal; else the URL's, or 800000000001
    #[arg(long, value_name = "ISID", value_parser = isid)]
    pub(crate) isid: Option<Isid>,
    /// Tell it as one line of JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Kept so that a range is not mistyped where none may be given.
pub(crate) fn is_whole(range: &RangeOptions) -> bool {
    range.offset == Amount::Bytes(0) && range.length.is_none()
}
