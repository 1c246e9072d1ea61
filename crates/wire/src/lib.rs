//! lunette-wire
