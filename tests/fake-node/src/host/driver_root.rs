//! The driver's user-space files, as an installer of one [`Layout`] leaves them.
//!
//! ```text
//!  <driver root>/usr/lib/x86_64-linux-gnu/libcuda.so.580.105.08       an ELF object with a SONAME, no code
//!                                         libcuda.so.1, libcuda.so    links, where the real installer makes them
//!                                         libnvidia-ml.so.580.105.08  the mock NVML
//!                                         mock-nvml                   the machine that the mock plays, and its state
//!                usr/bin/nvidia-smi                                   a stand-in (see `smi`)
//!                usr/lib/firmware/nvidia/580.105.08/gsp_ga10x.bin
//!                usr/share/…, etc/…                                   what graphics containers get
//!                run/nvidia-persistenced/socket
//! ```

use std::fs;
use std::path::{Path, PathBuf};

use topology::Topology;

use super::tree::{Tree, file};
use super::{Error, Layout, elf, smi};

/// How a library is known to the loader.
enum Soname {
    /// `lib.so.<n>`, with a link of that name.
    Stable(u32),
    /// As [`Stable`](Self::Stable), and a link `lib.so` for linking against.
    StableAndBare(u32),
    /// `lib.so.<driver version>`: private to the driver, no links.
    Versioned,
}

use Soname::{Stable, StableAndBare, Versioned};

/// The libraries of a 5xx driver whose file name ends in the driver's version. NVML is not among them: it is the mock.
const LIBRARIES: [(&str, Soname); 32] = [
    ("libcuda", StableAndBare(1)),
    ("libcudadebugger", Stable(1)),
    ("libnvidia-cfg", StableAndBare(1)),
    ("libnvidia-ptxjitcompiler", StableAndBare(1)),
    ("libnvidia-nvvm", StableAndBare(4)),
    ("libnvidia-opencl", Stable(1)),
    ("libnvidia-gpucomp", Versioned),
    ("libnvidia-allocator", StableAndBare(1)),
    ("libnvidia-opticalflow", StableAndBare(1)),
    ("libnvidia-encode", StableAndBare(1)),
    ("libnvcuvid", StableAndBare(1)),
    ("libnvidia-fbc", StableAndBare(1)),
    ("libnvidia-ngx", Stable(1)),
    ("libnvidia-rtcore", Versioned),
    ("libnvoptix", Stable(1)),
    ("libnvidia-eglcore", Versioned),
    ("libnvidia-glcore", Versioned),
    ("libnvidia-glsi", Versioned),
    ("libnvidia-glvkspirv", Versioned),
    ("libnvidia-tls", Versioned),
    ("libnvidia-gtk2", Versioned),
    ("libnvidia-gtk3", Versioned),
    ("libGLX_nvidia", Stable(0)),
    ("libEGL_nvidia", Stable(0)),
    ("libGLESv1_CM_nvidia", Stable(1)),
    ("libGLESv2_nvidia", Stable(2)),
    ("libnvidia-pkcs11", Versioned),
    ("libnvidia-pkcs11-openssl3", Versioned),
    ("libnvidia-sandboxutils", Stable(1)),
    ("libnvidia-present", Versioned),
    ("libnvidia-wayland-client", Versioned),
    ("vdpau/libvdpau_nvidia", Stable(1)),
];

/// Graphics libraries with a version of their own.
const EGL_LIBRARIES: [(&str, &str); 2] = [("libnvidia-egl-gbm", "1.1.2"), ("libnvidia-egl-wayland", "1.1.20")];

/// Binaries besides `nvidia-smi`; they do nothing.
const BINARIES: [&str; 4] =
    ["nvidia-debugdump", "nvidia-persistenced", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server"];

const FIRMWARE: [&str; 2] = ["gsp_ga10x.bin", "gsp_tu10x.bin"];

/// A manifest by which a loader finds a driver library.
macro_rules! manifest {
    ($library:literal) => {
        concat!("{\"file_format_version\": \"1.0.0\", \"ICD\": {\"library_path\": \"", $library, "\"}}\n")
    };
}

/// Files that graphics containers get, with what the installer writes into them.
const GRAPHICS: [(&str, &str); 10] = [
    ("usr/share/glvnd/egl_vendor.d/10_nvidia.json", manifest!("libEGL_nvidia.so.0")),
    ("usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json", manifest!("libnvidia-egl-gbm.so.1")),
    ("usr/share/egl/egl_external_platform.d/10_nvidia_wayland.json", manifest!("libnvidia-egl-wayland.so.1")),
    ("usr/share/nvidia/nvoptix.bin", ""),
    ("usr/share/X11/xorg.conf.d/10-nvidia.conf", ""),
    ("usr/share/X11/xorg.conf.d/nvidia-drm-outputclass.conf", ""),
    ("etc/OpenCL/vendors/nvidia.icd", "libnvidia-opencl.so.1\n"),
    ("etc/vulkan/icd.d/nvidia_icd.json", manifest!("libGLX_nvidia.so.0")),
    ("etc/vulkan/icd.d/nvidia_layers.json", manifest!("libGLX_nvidia.so.0")),
    ("etc/vulkan/implicit_layer.d/nvidia_layers.json", manifest!("libGLX_nvidia.so.0")),
];

/// Where the mock NVML finds its machine: beside its library. Inside the driver root, so that who has that has all of it,
/// wherever it is mounted or copied to.
pub(super) const STATE: &str = "mock-nvml";

/// Changes the mock library's bytes before they are installed.
pub(super) type Transform = Box<dyn Fn(&mut Vec<u8>) + Send + Sync>;

/// Installs and replaces drivers.
pub(super) struct DriverRoot {
    tree: Tree,
    layout: Layout,
    /// The mock library as built.
    mock: PathBuf,
    transform: Option<Transform>,
}

// === impl DriverRoot ===

impl DriverRoot {
    pub(super) fn new(root: PathBuf, layout: Layout, mock: PathBuf, transform: Option<Transform>) -> Self {
        Self { tree: Tree::new(root), layout, mock, transform }
    }

    pub(super) fn root(&self) -> &Path {
        self.tree.root()
    }

    /// The directory of the libraries.
    pub(super) fn libraries(&self) -> PathBuf {
        self.tree.path(self.layout.libraries())
    }

    /// The directory of the mock's machine; stays when the driver is replaced.
    pub(super) fn state(&self) -> PathBuf {
        self.libraries().join(STATE)
    }

    /// The directory of the stand-in's data.
    pub(super) fn smi(&self) -> PathBuf {
        self.tree.path(self.layout.binaries()).join(smi::DATA)
    }

    /// Writes everything of one version.
    pub(super) fn install(&self, topology: &Topology, version: &str) -> Result<(), Error> {
        let Self { tree, layout, .. } = self;
        if layout.is_system() {
            for name in ["bin", "sbin", "lib", "lib64"] {
                tree.dir(format!("usr/{name}"))?;
                tree.link(name, format!("usr/{name}"))?;
            }
        }
        if layout.has_graphics() {
            for (path, content) in GRAPHICS {
                tree.file(path, content)?;
            }
        }
        for name in BINARIES {
            tree.executable(format!("{}/{name}", layout.binaries()), "#!/bin/sh\nexit 0\n")?;
        }
        smi::install(tree, layout.binaries(), topology, version)?;
        for (link, target) in layout.driver_links() {
            tree.link(link, target)?;
        }
        for name in FIRMWARE {
            tree.file(format!("{}/nvidia/{version}/{name}", layout.firmware()), name)?;
        }
        tree.socket("run/nvidia-persistenced/socket")?;
        if !topology.host.nvswitches.is_empty() {
            tree.socket("run/nvidia-fabricmanager/socket")?;
        }
        self.install_libraries(version)
    }

    /// Removes what is named after a version.
    pub(super) fn uninstall(&self, version: &str) -> Result<(), Error> {
        let libraries = self.layout.libraries();
        for (name, _) in &LIBRARIES {
            self.tree.remove(format!("{libraries}/{name}.so.{version}"))?;
        }
        self.tree.remove(format!("{libraries}/libnvidia-ml.so.{version}"))?;
        if let Some(xorg) = self.layout.xorg() {
            self.tree.remove(format!("{xorg}/extensions/libglxserver_nvidia.so.{version}"))?;
        }
        self.tree.remove_dir(format!("{}/nvidia/{version}", self.layout.firmware()))
    }

    fn install_libraries(&self, version: &str) -> Result<(), Error> {
        let Self { tree, layout, .. } = self;
        let dir = layout.libraries();
        for (name, soname) in &LIBRARIES {
            let base = name.rsplit('/').next().unwrap_or(name);
            let full = format!("{base}.so.{version}");
            let link = match soname {
                Versioned => None,
                Stable(major) | StableAndBare(major) => Some(format!("{base}.so.{major}")),
            };
            let content = elf::shared_object(link.as_ref().unwrap_or(&full));
            tree.file(format!("{dir}/{name}.so.{version}"), content)?;
            if let Some(link) = link {
                let subdir = name.strip_suffix(base).unwrap_or_default();
                tree.link(format!("{dir}/{subdir}{link}"), &full)?;
                if matches!(soname, StableAndBare(_)) {
                    tree.link(format!("{dir}/{subdir}{base}.so"), link)?;
                }
            }
        }
        self.install_mock(&dir, version)?;
        tree.link(format!("{dir}/libGLX_indirect.so.0"), format!("libGLX_nvidia.so.{version}"))?;
        for (name, own_version) in EGL_LIBRARIES {
            let soname = format!("{name}.so.1");
            tree.file(format!("{dir}/{name}.so.{own_version}"), elf::shared_object(&soname))?;
            tree.link(format!("{dir}/{soname}"), format!("{name}.so.{own_version}"))?;
        }
        tree.link(format!("{dir}/gbm/nvidia-drm_gbm.so"), format!("../libnvidia-allocator.so.{version}"))?;
        if let Some(xorg) = layout.xorg() {
            let glx = format!("libglxserver_nvidia.so.{version}");
            tree.file(format!("{xorg}/drivers/nvidia_drv.so"), elf::shared_object("nvidia_drv.so"))?;
            tree.file(format!("{xorg}/extensions/{glx}"), elf::shared_object("libglxserver_nvidia.so"))?;
            tree.link(format!("{xorg}/extensions/libglxserver_nvidia.so"), glx)?;
        }
        Ok(())
    }

    fn install_mock(&self, dir: &str, version: &str) -> Result<(), Error> {
        let mut library = fs::read(&self.mock).map_err(file("read the mock NVML", &self.mock))?;
        if let Some(transform) = &self.transform {
            transform(&mut library);
        }
        let full = format!("libnvidia-ml.so.{version}");
        self.tree.file(format!("{dir}/{full}"), library)?;
        self.tree.link(format!("{dir}/libnvidia-ml.so.1"), full)?;
        self.tree.link(format!("{dir}/libnvidia-ml.so"), "libnvidia-ml.so.1")
    }
}
