//! Sets the shared library's name for the loader to `libgabion.so.ABI`, with the ABI number from
//! `src/lib.rs`, so that a program never runs with a library of another ABI.

fn main() {
    println!("cargo::rerun-if-changed=src/lib.rs");
    let text = std::fs::read_to_string("src/lib.rs").expect("src/lib.rs is there");
    let abi = text
        .lines()
        .find_map(|l| l.strip_prefix("pub const GABION_ABI: u32 = ")?.strip_suffix(';'))
        .expect("src/lib.rs has a line `pub const GABION_ABI: u32 = N;`");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libgabion.so.{abi}");
}
