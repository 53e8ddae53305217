//! Compiles the messages of the services in `proto/`, which the fake kubelet calls, and their servers, from which its own
//! tests build plugins.

use std::error::Error;
use std::path::Path;

/// Where the definitions are, seen from this package.
const PROTO: &str = "../../proto";

/// All services that the kubelet calls.
const SERVICES: [&str; 5] =
    ["registration.proto", "dra_v1.proto", "dra_v1beta1.proto", "health_v1.proto", "health_v1alpha1.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed={PROTO}");
    let files = SERVICES.map(|name| Path::new(PROTO).join(name));
    tonic_prost_build::configure().build_client(false).compile_fds(protox::compile(files, [PROTO])?)?;
    Ok(())
}
