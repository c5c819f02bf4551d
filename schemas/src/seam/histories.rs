//! Random histories of the whole protocol.
