//! The views are built into the binary; a change of one must rebuild it.
fn main() {
    println!("cargo::rerun-if-changed=views");
}
