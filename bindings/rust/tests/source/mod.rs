// SPDX-License-Identifier: Apache-2.0
//! The source tree that this crate is a part of: EPIGRAD_SOURCE, or the folder above.
use std::path::PathBuf;

pub fn read(path: &str) -> String {
    let above = || concat!(env!("CARGO_MANIFEST_DIR"), "/../..").into();
    let root: PathBuf = std::env::var_os("EPIGRAD_SOURCE").map_or_else(above, PathBuf::from);
    std::fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}
