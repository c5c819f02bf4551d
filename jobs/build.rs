//! Views are embedded into the binary, so a changed view must rebuild it.
fn main() {
    println!("cargo::rerun-if-changed=views");
}
