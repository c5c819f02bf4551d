//! The seam.
