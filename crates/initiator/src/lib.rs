//! The iSCSI initiator's driver: sessions with targets in user space, without root and without a kernel module.
//!
//! What is said is decided in `lunette_iscsi::initiator`, which does no I/O; here are the sockets, the clock, the threads
//! and the buffers around it. What a CDB means is the caller's affair; [`lunette_scsi`] has builders and decoders.
//!
//! A session has three faces. [`Engine`] is driven by the thread that owns it: the fastest, for many commands at once.
//! [`Session`] is a handle for any number of threads and any executor; its engine has a thread of its own.
//! [`blocking::Session`] waits for each answer. [`multipath`] has all of them for a disk with several paths. [`discover()`] and
//! [`discover_isns()`] find targets, [`login_trace`] tells how a login goes.
//!
//! Every [`Command`] is submitted with its own buffer, and ends with a [`Completion`]: the buffer, status and sense data
//! ([`Status::decoded_sense`]), or why there is no status ([`CommandError`]), and when it was submitted, sent, first answered and
//! done ([`Times`]).
//!
//! `examples/` has a program for each face: `blocking`, `asynchronous`, `event_loop` (an [`Engine`] beside other things that its thread
//! waits for) and `multipath`.

#![forbid(unsafe_code)]

pub mod blocking;
mod command;
mod connect;
mod discover;
mod engine;
mod error;
mod identity;
mod merge;
pub mod multipath;
mod name_service;
mod options;
mod secret;
mod session;
mod url;
mod way;
mod wire;

pub use command::{Cdb, Command, CommandError, CommandId, Completion, Data, Replay, Status, Times};
pub use connect::{Attempt, Exchange, LoginRecord, login_trace};
pub use discover::{discover, discover_trace};
pub use engine::{ConnectionInfo, Engine, EngineEvent, Remedy, RequestId, Waker};
pub use error::{Advice, Error, Phase, Side};
pub use identity::{default_initiator_name, isid_from_hex};
pub use lunette_iscsi::chap::{ChapAlgorithm, ChapCredential, SECRET_LENGTH_SOUND, Secret};
pub use lunette_iscsi::initiator::discovery::{DEFAULT_PORT, DiscoveredTarget, Portal, PortalError};
pub use lunette_iscsi::initiator::login::{
    Credentials, DigestWish, LoginError, Outcome, Purpose, Reason, Trace, TracedKey, TracedPdu, Wishes,
};
pub use lunette_iscsi::initiator::session::{AnswerFault, Function, Notice};
pub use lunette_iscsi::name::IscsiName;
pub use lunette_iscsi::parameters::{ConnectionParameters, SessionParameters};
pub use lunette_scsi::client::Sense;
pub use merge::Merging;
pub use name_service::{ISNS_PORT, discover_isns};
pub use options::{Options, Timing};
pub use secret::{SecretError, secret_from_environment, secret_from_file};
pub use session::{Session, Submitted};
pub use url::{Lun, TargetUrl, TransferWishes, URL_FORM, UrlError, without_secrets};
pub use way::Way;
