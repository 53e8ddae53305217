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
}

// === impl Layout ===

impl Layout {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Debian, Self::Rhel, Self::GpuOperator, Self::Gke];

    /// The driver root, from the root of the machine; empty for `/`.
    pub(super) fn root(self) -> &'static str {
        match self {
            Self::Debian | Self::Rhel => "",
            Self::GpuOperator => "run/nvidia/driver",
            Self::Gke => "home/kubernetes/bin/nvidia",
        }
    }

    /// Libraries, from the driver root.
    pub(super) fn libraries(self) -> String {
        match self {
            Self::Debian | Self::GpuOperator => format!("usr/lib/{TRIPLET}"),
            Self::Rhel => "usr/lib64".to_owned(),
            Self::Gke => "lib64".to_owned(),
        }
    }

    /// Binaries, from the driver root.
    pub(super) fn binaries(self) -> &'static str {
        if self == Self::Gke { "bin" } else { "usr/bin" }
    }

    /// Firmware, from the driver root. `/lib` of the others is a link to `usr/lib`.
    pub(super) fn firmware(self) -> &'static str {
        if self == Self::Gke { "firmware" } else { "usr/lib/firmware" }
    }

    /// `/sys/module/firmware_class/parameters/path`: where the kernel looks first; empty for its own places.
    pub(super) fn firmware_parameter(self) -> &'static str {
        match self {
            Self::Debian | Self::Rhel => "",
            Self::GpuOperator => "/run/nvidia/driver/lib/firmware",
            Self::Gke => "/home/kubernetes/bin/nvidia/firmware",
        }
    }

    /// Modules of the X server, from the driver root; nothing where there is none.
    pub(super) fn xorg(self) -> Option<&'static str> {
        match self {
            Self::Debian | Self::GpuOperator => Some("usr/lib/xorg/modules"),
            Self::Rhel => Some("usr/lib64/xorg/modules"),
            Self::Gke => None,
        }
    }
}
