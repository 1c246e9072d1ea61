//! lunette-block
