//! Tests of identities.
