//! The demo compares every served value with a recount of its own, and reports the result in its
//! exit status.

use tests::installation::Installation;
use tests::process::run_ok;

#[test]
fn the_demo_finds_no_difference() {
    let installation = Installation::embedded();
    // Long enough to delete athletes and to request connections.
    let args = ["demo", "--seconds", "20", "--listen", "127.0.0.1:0"];
    let message = run_ok(installation.data(), &args);
    assert!(!message.is_empty());
}
