//! The demo compares every served value with a recount of its own, and says so by its exit status.

use tests::place::Place;
use tests::process::done;

#[test]
fn the_demo_finds_no_difference() {
    let place = Place::embedded();
    // Long enough for athletes to be deleted and to ask to connect.
    let args = ["demo", "--seconds", "20", "--listen", "127.0.0.1:0"];
    let said = done(place.data(), &args);
    assert!(!said.is_empty());
}
