//! The binary; see the library for how it is put together.

fn main() {}
