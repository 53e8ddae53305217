//! The command line: every setting that differs between machines, each with an environment twin unless it is for tests.
//!
//! Environment names are those of NVIDIA's driver where it has the same setting, so that a DaemonSet can be switched
//! over without renaming. Parsing has no side effects; what a path leads to is looked at when it is used.

mod dynamic_mig;

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Parser;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

pub use dynamic_mig::DynamicMig;

/// Where `--help` ends: the one thing a newcomer asks next.
const AFTER_HELP: &str = "\
A first look without a GPU or a cluster: run `hack/demo` in the source tree.
On a node, only --node-name is required; the defaults fit a standard kubelet and a driver installed on the host.";

/// A Kubernetes DRA kubelet plugin for NVIDIA GPUs.
///
/// Finds the node's GPUs through NVML, publishes them as ResourceSlices, and prepares the claims that the scheduler
/// allocates from them. Runs on each GPU node, normally as a DaemonSet.
#[derive(Debug, Clone, Parser)]
#[command(name = "gpu-dra-plugin", version, after_help = AFTER_HELP, max_term_width = 110)]
pub struct Args {
    /// Name of this node's Node object
    #[arg(long, env = "NODE_NAME", value_name = "NAME", value_parser = node_name, help_heading = "Kubernetes")]
    pub node_name: String,

    /// Kubeconfig file; without it the pod's service account is used
    #[arg(long, env = "KUBECONFIG", value_name = "FILE", value_parser = path, help_heading = "Kubernetes")]
    pub kubeconfig: Option<PathBuf>,

    /// Name under which devices are published and the kubelet knows this plugin. The classes and the rights in deploy/ name
    /// it too
    #[arg(
        long,
        env = "DRIVER_NAME",
        value_name = "NAME",
        default_value = "gpu.nvidia.com",
        value_parser = driver_name,
        help_heading = "Kubernetes"
    )]
    pub driver_name: String,

    /// Publish `nvlinkCliques`, and `numaNode` as a list. For clusters that have the feature gate
    /// DRAListTypeAttributes on in API server and scheduler. An API server without it gets `numaNode` as a number and
    /// no `nvlinkCliques`; where only the scheduler is without it, pods that ask for GPUs stay pending
    #[arg(long, env = "LIST_ATTRIBUTES", help_heading = "Kubernetes")]
    pub list_attributes: bool,

    /// Where the kubelet is
    #[command(flatten)]
    pub kubelet: Kubelet,

    /// Where container runtimes look for CDI specs
    #[arg(
        long,
        env = "CDI_ROOT",
        value_name = "DIR",
        default_value = "/var/run/cdi",
        value_parser = path,
        help_heading = "Host"
    )]
    pub cdi_root: PathBuf,

    /// Where the NVIDIA driver is installed on the host [default: looked for in the known places]
    #[arg(long, env = "NVIDIA_DRIVER_ROOT", value_name = "DIR", value_parser = path, help_heading = "Host")]
    pub driver_root: Option<PathBuf>,

    /// Where the host's /, or the driver root alone, is mounted in this container [default: the same path]
    #[arg(long, env = "DRIVER_ROOT_CTR_PATH", value_name = "DIR", value_parser = path, help_heading = "Host")]
    pub container_driver_root: Option<PathBuf>,

    /// The NVML library [default: libnvidia-ml.so.1 of the driver root]
    #[arg(long, env = "NVML_LIBRARY", value_name = "FILE", value_parser = path, help_heading = "Host")]
    pub nvml_library: Option<PathBuf>,

    /// The host's /sys
    #[arg(
        long,
        env = "SYS_ROOT",
        value_name = "DIR",
        default_value = "/sys",
        value_parser = path,
        help_heading = "Host"
    )]
    pub sys_root: PathBuf,

    /// The host's /proc
    #[arg(
        long,
        env = "PROC_ROOT",
        value_name = "DIR",
        default_value = "/proc",
        value_parser = path,
        help_heading = "Host"
    )]
    pub proc_root: PathBuf,

    /// The host's /dev
    #[arg(
        long,
        env = "DEV_ROOT",
        value_name = "DIR",
        default_value = "/dev",
        value_parser = path,
        help_heading = "Host"
    )]
    pub dev_root: PathBuf,

    /// What containers get, and how
    #[command(flatten)]
    pub containers: Containers,

    /// How GPUs are partitioned
    #[command(flatten)]
    pub mig: Mig,

    /// Accept plain files as device nodes. For machines without a GPU: see tests/fake-node
    #[arg(long, env = "PLACEHOLDER_DEVICES", hide = true, help_heading = "Host")]
    pub placeholder_devices: bool,

    /// How fast the time of publishing runs, so that tests need not wait for hours. Without a twin in the environment,
    /// where nobody would look for it
    #[arg(long, value_name = "TIMES", default_value_t = NonZeroU32::MIN, hide = true, help_heading = "Kubernetes")]
    pub time_scale: NonZeroU32,

    /// Address of /metrics, /healthz and /readyz: `host:port`, `:port`, or `off`
    #[arg(long, env = "HTTP_ENDPOINT", value_name = "ADDRESS", default_value = ":8080", help_heading = "Observation")]
    pub http_endpoint: Endpoint,

    /// How log lines look
    #[arg(
        long,
        env = "LOG_FORMAT",
        value_name = "FORMAT",
        default_value = "text",
        value_enum,
        help_heading = "Observation"
    )]
    pub log_format: LogFormat,

    /// What is logged: `error`, `warn`, `info`, `debug`, `trace`, or a filter such as `info,gpu_dra_plugin::nvml=debug`
    #[arg(
        long,
        env = "LOG_LEVEL",
        value_name = "LEVEL",
        default_value = "info",
        value_parser = log_level,
        help_heading = "Observation"
    )]
    pub log_level: String,
}

/// Where the kubelet is.
#[derive(Debug, Clone, clap::Args)]
pub struct Kubelet {
    /// The kubelet's --root-dir; must be the same path here and on the host
    #[arg(
        long,
        env = "KUBELET_ROOT",
        value_name = "DIR",
        default_value = "/var/lib/kubelet",
        value_parser = path,
        help_heading = "Kubelet"
    )]
    pub kubelet_root: PathBuf,

    /// Where the kubelet looks for plugins [default: <kubelet root>/plugins_registry]
    #[arg(
        long,
        env = "KUBELET_REGISTRAR_DIRECTORY_PATH",
        value_name = "DIR",
        value_parser = path,
        help_heading = "Kubelet"
    )]
    pub kubelet_registrar_directory_path: Option<PathBuf>,

    /// Where plugins keep their sockets and state [default: <kubelet root>/plugins]
    #[arg(
        long,
        env = "KUBELET_PLUGINS_DIRECTORY_PATH",
        value_name = "DIR",
        value_parser = path,
        help_heading = "Kubelet"
    )]
    pub kubelet_plugins_directory_path: Option<PathBuf>,

    /// UID of this pod: by the downward API, an environment variable POD_UID with fieldPath metadata.uid. Gives the
    /// sockets names of their own, so that during a rolling update with maxSurge the old pod and the new one serve side
    /// by side. Kubelets before 1.33 lose the plugin when the old pod ends
    #[arg(long, env = "POD_UID", value_name = "UID", value_parser = pod_uid, help_heading = "Kubelet")]
    pub pod_uid: Option<String>,
}

/// How GPUs are partitioned.
#[derive(Debug, Clone, clap::Args)]
pub struct Mig {
    /// Which GPUs the plugin partitions itself when claims ask for parts: `none`, `all`, or models, such as `A100,H100`.
    /// Every part that they could have is offered, beside the whole GPU. All others are offered as an administrator has
    /// partitioned them, and so are GPUs before Hopper whose MIG mode is off, since turning it on takes a reset. Needs an API
    /// server and a scheduler with DRAPartitionableDevices, 1.36.3 or newer
    #[arg(long, env = "DYNAMIC_MIG", value_name = "GPUS", default_value = "none", help_heading = "MIG")]
    pub dynamic_mig: DynamicMig,

    /// How the parts of such a GPU are counted. Schedulers before 1.36.3 lose track of what a device takes that they
    /// considered and did not choose; with `light`, claims for several whole GPUs still work there
    #[arg(long, env = "MIG_COUNTING", value_name = "FORM", value_enum, default_value = "exact", help_heading = "MIG")]
    pub mig_counting: MigCounting,
}

/// How the parts of a GPU that the plugin partitions are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum MigCounting {
    /// A device takes what it has
    Exact,
    /// A whole GPU takes so little that it does no harm where it is forgotten
    Light,
}

/// What containers get, and how.
#[derive(Debug, Clone, clap::Args)]
pub struct Containers {
    /// Who makes the driver's libraries known to a container's loader before it starts [default: own, if the plugin's image has
    /// the hook and Linux is 5.8 or newer, else none]
    #[arg(long, env = "CDI_HOOK", value_name = "HOOK", value_enum, help_heading = "Containers")]
    pub hook: Option<HookKind>,

    /// Where the plugin's own hook is installed; must be the same path here and on the host [default: the plugin's
    /// directory below the kubelet's]
    #[arg(long, env = "HOOK_DIRECTORY", value_name = "DIR", value_parser = path, help_heading = "Containers")]
    pub hook_directory: Option<PathBuf>,

    /// Where nvidia-cdi-hook is on the host [default: looked for in the known places]
    #[arg(long, env = "NVIDIA_CDI_HOOK_PATH", value_name = "FILE", value_parser = path, help_heading = "Containers")]
    pub nvidia_cdi_hook_path: Option<PathBuf>,

    /// Give containers what the driver has for graphics too: DRM nodes, and files of EGL, Vulkan and X
    #[arg(
        long,
        env = "GRAPHICS",
        value_name = "BOOL",
        default_value_t = true,
        action = clap::ArgAction::Set,
        help_heading = "Containers"
    )]
    pub graphics: bool,
}

/// What a container runtime runs for each container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum HookKind {
    /// Nothing: libraries are found where image and host are of one family
    None,
    /// The plugin's own hook: one short process
    Own,
    /// NVIDIA's, from its container toolkit 1.18 or newer: four processes
    NvidiaCdiHook,
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Where to serve HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Endpoint {
    /// Nowhere.
    Off,
    /// On this address.
    At(SocketAddr),
}

// === impl Endpoint ===

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() || text == "off" {
            return Ok(Self::Off);
        }
        // `:8080` is how Go programs, and so NVIDIA's chart, spell "all addresses".
        let full = if text.starts_with(':') { format!("[::]{text}") } else { text.replace("localhost:", "127.0.0.1:") };
        full.parse().map(Self::At).map_err(|_| "expected host:port, :port or off".to_owned())
    }
}

/// A path that can be used: not empty, and absolute, since the kubelet and container runtimes get it too.
fn path(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    if path.is_absolute() {
        Ok(path)
    } else if text.is_empty() {
        Err("the path is empty; leave the setting out to get the default".to_owned())
    } else {
        Err("the path must be absolute".to_owned())
    }
}

/// The name of a Node object is a DNS subdomain.
fn node_name(text: &str) -> Result<String, String> {
    subdomain(text, 253, "worker-1.example.com")
}

/// A driver name is a DNS subdomain of at most 63 characters (`spec.driver` of a ResourceSlice).
fn driver_name(text: &str) -> Result<String, String> {
    subdomain(text, 63, "gpu.nvidia.com")
}

fn subdomain(text: &str, longest: usize, example: &str) -> Result<String, String> {
    let label = |label: &str| {
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        !label.is_empty() && label.bytes().all(plain) && !label.starts_with('-') && !label.ends_with('-')
    };
    let text = non_empty(text)?;
    if text.len() <= longest && text.split('.').all(label) {
        Ok(text)
    } else {
        Err(format!("expected lower-case DNS labels joined by dots, at most {longest} characters, such as {example}"))
    }
}

/// A UID becomes part of file names.
fn pod_uid(text: &str) -> Result<String, String> {
    let text = non_empty(text)?;
    let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
    if text.bytes().all(plain) { Ok(text) } else { Err("only letters, digits and '-' are in a UID".to_owned()) }
}

/// A level, or a filter of `target=level` parts. What is no level is a target to the filter's own parser: a misspelt level
/// alone would silence everything else, errors too.
fn log_level(text: &str) -> Result<String, String> {
    let text = non_empty(text)?;
    let expected = "expected error, warn, info, debug, trace, off or a filter such as info,gpu_dra_plugin::nvml=debug";
    let part = |part: &str| part.contains('=') || part.contains("::") || part.trim().parse::<LevelFilter>().is_ok();
    match EnvFilter::try_new(&text) {
        Ok(_) if text.split(',').all(part) => Ok(text),
        Ok(_) => Err(expected.to_owned()),
        Err(error) => Err(format!("{expected}: {error}")),
    }
}

fn non_empty(text: &str) -> Result<String, String> {
    if text.is_empty() { Err("the value is empty".to_owned()) } else { Ok(text.to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Args, clap::Error> {
        Args::try_parse_from(["gpu-dra-plugin"].iter().chain(args))
    }

    #[test]
    fn a_node_name_is_enough() {
        let args = parse(&["--node-name", "a"]).unwrap();
        assert_eq!(args.driver_name, "gpu.nvidia.com");
        assert_eq!(args.time_scale.get(), 1, "time is real");
        assert_eq!(args.http_endpoint, Endpoint::At("[::]:8080".parse().unwrap()));
    }

    #[test]
    fn unusable_values_are_refused_with_a_sentence() {
        for (flag, value, sentence) in [
            ("--kubeconfig", "", "the path is empty"),
            ("--cdi-root", "cdi", "must be absolute"),
            ("--driver-name", "GPU", "lower-case DNS labels"),
            ("--driver-name", "a..b", "lower-case DNS labels"),
            ("--driver-name", &"a".repeat(64), "at most 63 characters"),
            ("--http-endpoint", "8080", "host:port"),
            ("--pod-uid", "../x", "letters, digits"),
            ("--log-level", "loud", "expected error, warn"),
            ("--time-scale", "0", "zero"),
        ] {
            let error = parse(&["--node-name", "a", flag, value]).unwrap_err().to_string();
            assert!(error.contains(sentence), "{flag} {value:?}: {error}");
        }
    }

    #[test]
    fn a_node_name_is_one_that_a_node_can_have() {
        for name in ["A", "a/b", "../a", "a..b", "-a", "a_b", &"a".repeat(254)] {
            let error = parse(&[&format!("--node-name={name}")]).unwrap_err().to_string();
            assert!(error.contains("lower-case DNS labels"), "{name:?}: {error}");
        }
        for name in ["a", "ip-10-0-0-1.ec2.internal", "0"] {
            assert_eq!(parse(&["--node-name", name]).unwrap().node_name, name);
        }
    }

    #[test]
    fn levels_and_filters_say_what_is_logged() {
        for text in ["info", "WARN", "info,gpu_dra_plugin::nvml=debug", "gpu_dra_plugin::nvml", "off,[claim]=info"] {
            assert_eq!(parse(&["--node-name", "a", "--log-level", text]).unwrap().log_level, text);
        }
    }

    #[test]
    fn http_can_be_switched_off_and_bound_to_one_address() {
        for (text, endpoint) in [
            ("off", Endpoint::Off),
            ("", Endpoint::Off),
            (":0", Endpoint::At("[::]:0".parse().unwrap())),
            ("127.0.0.1:80", Endpoint::At("127.0.0.1:80".parse().unwrap())),
            ("localhost:80", Endpoint::At("127.0.0.1:80".parse().unwrap())),
        ] {
            assert_eq!(text.parse(), Ok(endpoint), "{text:?}");
        }
    }
}
