//! serving
