//! Where distributions put a driver.

/// The GNU triplet directory of this machine.
const TRIPLET: &str = if cfg!(target_arch = "aarch64") { "aarch64-linux-gnu" } else { "x86_64-linux-gnu" };

/// One way to install the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Layout {
    /// Debian and Ubuntu packages: root `/`, libraries in `usr/lib/<triplet>`.
    Debian,
    /// Red Hat, SUSE and the `.run` installer: root `/`, libraries in `usr/lib64`.
    Rhel,
    /// The GPU operator's driver container, an Ubuntu below `run/nvidia/driver`.
    GpuOperator,
    /// GKE on Container-Optimized OS: all below `home/kubernetes/bin/nvidia`, nothing for graphics.
    Gke,
    /// Talos with its system extension: a C library and the driver below `usr/local`, firmware in the system.
    Talos,
    /// NixOS: all in a directory of the store, and a link to it from `run/opengl-driver`. The link is absolute, as the real
    /// one, so only those can follow it who take the directory of the machine for `/`.
    Nixos,
    /// Bottlerocket: `/usr` is a link to the directory of its target, and the driver is in the inside of that.
    Bottlerocket,
    /// Flatcar without its system extension: all below `opt/nvidia/current`. With it, it is as `rhel`.
    Flatcar,
}

// === impl Layout ===

impl Layout {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Debian,
        Self::Rhel,
        Self::GpuOperator,
        Self::Gke,
        Self::Talos,
        Self::Nixos,
        Self::Bottlerocket,
        Self::Flatcar,
    ];

    /// The driver root, from the root of the machine; empty for `/`.
    pub(super) fn root(self) -> &'static str {
        match self {
            Self::Debian | Self::Rhel | Self::Bottlerocket => "",
            Self::GpuOperator => "run/nvidia/driver",
            Self::Gke => "home/kubernetes/bin/nvidia",
            Self::Talos => "usr/local",
            Self::Nixos => "nix/store/00000000000000000000000000000000-nvidia-x11",
            Self::Flatcar => "opt/nvidia/current",
        }
    }

    /// Where the driver's own device nodes are, from the root of the machine. A driver container has a `/dev` of its own.
    pub(super) fn dev(self) -> &'static str {
        if self == Self::GpuOperator { "run/nvidia/driver/dev" } else { "dev" }
    }

    /// Whether the driver root is a whole system, whose `/bin`, `/sbin`, `/lib` and `/lib64` are links into `/usr`.
    pub(super) fn is_system(self) -> bool {
        matches!(self, Self::Debian | Self::Rhel | Self::GpuOperator | Self::Bottlerocket)
    }

    /// Whether the installer writes the files that are for graphics alone.
    pub(super) fn has_graphics(self) -> bool {
        matches!(self, Self::Debian | Self::Rhel | Self::GpuOperator)
    }

    /// Links of the machine, from its root, and what is in them.
    pub(super) fn links(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Nixos => &[("run/opengl-driver", "/nix/store/00000000000000000000000000000000-nvidia-x11")],
            Self::Bottlerocket => &[("usr", "x86_64-bottlerocket-linux-gnu/sys-root/usr")],
            _ => &[],
        }
    }

    /// Links of the driver root, from there, and what is in them.
    pub(super) fn driver_links(self) -> &'static [(&'static str, &'static str)] {
        if self == Self::Bottlerocket {
            &[("usr/bin/nvidia-smi", "../libexec/nvidia/tesla/bin/nvidia-smi")]
        } else {
            &[]
        }
    }

    /// Libraries, from the driver root.
    pub(super) fn libraries(self) -> String {
        match self {
            Self::Debian | Self::GpuOperator => format!("usr/lib/{TRIPLET}"),
            Self::Rhel | Self::Flatcar => "usr/lib64".to_owned(),
            Self::Gke => "lib64".to_owned(),
            Self::Talos => "glibc/usr/lib".to_owned(),
            Self::Nixos => "lib".to_owned(),
            Self::Bottlerocket => "usr/lib/nvidia/tesla".to_owned(),
        }
    }

    /// Binaries, from the driver root.
    pub(super) fn binaries(self) -> &'static str {
        match self {
            Self::Debian | Self::Rhel | Self::GpuOperator | Self::Flatcar => "usr/bin",
            Self::Gke | Self::Talos | Self::Nixos => "bin",
            Self::Bottlerocket => "usr/libexec/nvidia/tesla/bin",
        }
    }

    /// Firmware, from the driver root. `/lib` of whole systems is a link to `usr/lib`.
    pub(super) fn firmware(self) -> &'static str {
        match self {
            Self::Gke => "firmware",
            Self::Talos => "../../lib/firmware",
            Self::Nixos => "lib/firmware",
            Self::Flatcar => "../../../lib/firmware",
            Self::Debian | Self::Rhel | Self::GpuOperator | Self::Bottlerocket => "usr/lib/firmware",
        }
    }

    /// `/sys/module/firmware_class/parameters/path`: where the kernel looks first; empty for its own places.
    pub(super) fn firmware_parameter(self) -> &'static str {
        match self {
            Self::GpuOperator => "/run/nvidia/driver/lib/firmware",
            Self::Gke => "/home/kubernetes/bin/nvidia/firmware",
            Self::Nixos => "/nix/store/00000000000000000000000000000000-nvidia-x11/lib/firmware",
            Self::Debian | Self::Rhel | Self::Talos | Self::Bottlerocket | Self::Flatcar => "",
        }
    }

    /// Modules of the X server, from the driver root; nothing where there is none.
    pub(super) fn xorg(self) -> Option<&'static str> {
        match self {
            Self::Debian | Self::GpuOperator => Some("usr/lib/xorg/modules"),
            Self::Rhel => Some("usr/lib64/xorg/modules"),
            Self::Gke | Self::Talos | Self::Nixos | Self::Bottlerocket | Self::Flatcar => None,
        }
    }
}
