// SPDX-License-Identifier: Apache-2.0
//! Finds libepigrad: in the folder EPIGRAD_LIB_DIR, or else where pkg-config says. EPIGRAD_STATIC=1 links the archive.
use std::env;
use std::process::{exit, Command};

const VARIABLES: [&str; 4] = ["EPIGRAD_LIB_DIR", "EPIGRAD_STATIC", "PKG_CONFIG", "PKG_CONFIG_PATH"];

fn fail(why: String) -> ! {
    eprintln!("epigrad-sys: {why}; expected an installed epigrad 0.1, or its folder in EPIGRAD_LIB_DIR");
    exit(1)
}

/// The folders that the linker has to look into besides its own.
fn ask_pkg_config() -> Vec<String> {
    let program = env::var("PKG_CONFIG").unwrap_or_else(|_| "pkg-config".into());
    // Before 1.0 another minor version is another library.
    let arguments = ["--libs-only-L", "epigrad >= 0.1", "epigrad < 0.2"];
    let output = match Command::new(&program).args(arguments).output() {
        Ok(output) => output,
        Err(error) => fail(format!("{program} does not run ({error})")),
    };
    if !output.status.success() {
        fail(format!(
            "{program} says: {}",
            String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or("nothing")
        ));
    }
    let folders = String::from_utf8_lossy(&output.stdout).into_owned();
    folders.split_whitespace().filter_map(|word| word.strip_prefix("-L")).map(String::from).collect()
}

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for name in VARIABLES {
        println!("cargo:rerun-if-env-changed={name}");
    }
    let folders = match env::var("EPIGRAD_LIB_DIR") {
        Ok(folder) => vec![folder],
        Err(_) => ask_pkg_config(),
    };
    for folder in folders {
        println!("cargo:rustc-link-search=native={folder}");
        // Our own programs find the library there when they run; those of others decide for themselves.
        println!("cargo:rustc-link-arg-tests=-Wl,-rpath,{folder}");
        println!("cargo:rustc-link-arg-examples=-Wl,-rpath,{folder}");
    }
    let archive = env::var("EPIGRAD_STATIC").map_or(false, |value| value == "1");
    println!("cargo:rustc-link-lib={}=epigrad", if archive { "static" } else { "dylib" });
}
