//! The initiator's role (RFC 7143): its login, its discovery sessions, and its sessions. What lies beside this module,
//! [`crate::login`] and [`crate::session`], is the target's role; names, keys, parameters and CHAP belong to both.

pub mod discovery;
pub mod login;
pub mod session;
