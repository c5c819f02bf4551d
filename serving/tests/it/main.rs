//! Tests of the serving layer by its public interface: mostly HTTP requests without a socket, to a
//! service with in-memory stores.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failed expectation ends the test"
)]

mod http;
mod laws;
mod memory_stores;
mod pages;
mod requests;
