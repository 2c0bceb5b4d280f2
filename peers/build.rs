//! Compiles the adapters of the stores that are written for C. A feature stands for each of them, since its
//! library must be installed.

fn main() {
    for name in ["rocksdb", "wiredtiger"] {
        if std::env::var_os(format!("CARGO_FEATURE_{}", name.to_uppercase())).is_some() {
            let file = format!("src/c/{name}.c");
            cc::Build::new().file(&file).warnings(true).compile(&format!("peer_{name}"));
            println!("cargo::rustc-link-lib={name}");
            println!("cargo::rerun-if-changed={file}");
        }
    }
    println!("cargo::rerun-if-changed=src/c/peer.h");
}
