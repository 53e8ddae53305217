//! Compiles `proto/` with protox: no protoc on the building machine.

use std::error::Error;
use std::path::Path;

/// All services that the plugin serves.
const SERVICES: [&str; 5] =
    ["registration.proto", "dra_v1.proto", "dra_v1beta1.proto", "health_v1.proto", "health_v1alpha1.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = SERVICES.map(|name| Path::new("proto").join(name));
    tonic_prost_build::configure().build_client(false).compile_fds(protox::compile(files, ["proto"])?)?;
    Ok(())
}
