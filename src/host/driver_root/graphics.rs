//! The driver's files for graphics: what EGL, GLVND, Vulkan and X need beside the libraries that are the driver's by name.
//!
//! ```text
//!  libraries  libnvidia-egl-gbm.so.1 …      platforms of EGL, with versions of their own
//!  names      gbm/nvidia-drm_gbm.so         by which GBM asks for libnvidia-allocator
//!  manifests  10_nvidia.json, nvidia_icd…   by which the loaders of EGL and Vulkan find the driver's libraries
//!  modules    nvidia_drv.so, libglxserver…  of the X server
//! ```
//!
//! OpenCL has such a manifest too and is no graphics: it is always there.

use std::path::Path;

use super::files::{Library, Mapped};
use super::{Directory, DriverRoot, under};

/// Platforms of EGL, by the names that its loader asks for.
const EGL_PLATFORMS: &[&str] = &[
    "libnvidia-egl-gbm.so.1",
    "libnvidia-egl-wayland.so.1",
    "libnvidia-egl-wayland2.so.1",
    "libnvidia-egl-xcb.so.1",
    "libnvidia-egl-xlib.so.1",
];

/// The library that GBM asks for by another name, and that name, beside the library.
const GBM: (&str, &str) = ("libnvidia-allocator.so.1", "gbm/nvidia-drm_gbm.so");

/// Where manifests are looked for, best first: those of whole systems, then those of a directory of its own.
const MANIFEST_DIRECTORIES: &[&str] = &["/etc", "/usr/local/share", "/usr/share", "/share", "/"];

/// The manifest of OpenCL, and where its loader looks.
const OPENCL: (&str, &str) = ("/etc", "OpenCL/vendors/nvidia.icd");

/// Manifests and data, and where they are in a container if the root is not a whole system.
const MANIFESTS: &[(&str, &str)] = &[
    ("/usr/share", "glvnd/egl_vendor.d/10_nvidia.json"),
    ("/usr/share", "egl/egl_external_platform.d/09_nvidia_wayland2.json"),
    ("/usr/share", "egl/egl_external_platform.d/10_nvidia_wayland.json"),
    ("/usr/share", "egl/egl_external_platform.d/15_nvidia_gbm.json"),
    ("/usr/share", "egl/egl_external_platform.d/20_nvidia_xcb.json"),
    ("/usr/share", "egl/egl_external_platform.d/20_nvidia_xlib.json"),
    ("/usr/share", "nvidia/nvoptix.bin"),
    ("/usr/share", "X11/xorg.conf.d/10-nvidia.conf"),
    ("/usr/share", "X11/xorg.conf.d/nvidia-drm-outputclass.conf"),
    ("/etc", "vulkan/icd.d/nvidia_icd.json"),
    ("/etc", "vulkan/icd.d/nvidia_icd.x86_64.json"),
    ("/etc", "vulkan/icd.d/nvidia_icd.aarch64.json"),
    ("/etc", "vulkan/icd.d/nvidia_layers.json"),
    ("/etc", "vulkan/implicit_layer.d/nvidia_layers.json"),
];

/// Where a library directory has the modules of X.
const X_MODULES: &[&str] = &["xorg/modules", "nvidia/xorg"];

/// The driver of X.
const X_DRIVER: &str = "nvidia_drv.so";

/// Its GLX, which X loads by the name without a version.
const X_GLX: &str = "libglxserver_nvidia.so";

/// What graphics need beside the driver's other files.
pub(super) struct Graphics {
    pub(super) libraries: Vec<Library>,
    pub(super) data: Vec<Mapped>,
    pub(super) links: Vec<(std::path::PathBuf, String)>,
}

// === impl DriverRoot ===

impl DriverRoot {
    /// Whatever is there of it. All of it is optional.
    pub(super) fn graphics(&self, libraries: &[Directory], version: &str) -> Graphics {
        let platforms = EGL_PLATFORMS.iter().filter_map(|soname| {
            libraries.iter().find_map(|directory| {
                let real = self.file_of(directory, soname)?;
                self.library_in(directory, real.file_name()?.to_str()?, libraries)
            })
        });
        let mut graphics = Graphics { libraries: platforms.collect(), data: Vec::new(), links: Vec::new() };
        graphics.data.extend(MANIFESTS.iter().filter_map(|(home, name)| self.manifest(home, name)));
        let modules = libraries.iter().flat_map(|directory| self.x_modules(directory));
        for (subdirectory, directory) in modules {
            let glx = format!("{X_GLX}.{version}");
            let (file, name) = if subdirectory == "drivers" { (X_DRIVER.to_owned(), None) } else { (glx, Some(X_GLX)) };
            let Some(module) = self.file_in(&directory, &file) else { continue };
            if graphics.data.iter().any(|known| known.host == module.host) {
                continue;
            }
            graphics.links.extend(name.map(|name| (directory.container.join(name), file)));
            graphics.data.push(module);
        }
        graphics
    }

    /// Adds the name by which GBM asks for a library, where the host has it.
    pub(super) fn name_for_gbm(&self, directories: &[Directory], libraries: &mut [Library]) {
        let Some(library) = libraries.iter_mut().find(|library| library.soname == GBM.0) else { return };
        let has = |directory: &&Directory| self.resolve(&directory.real.join(GBM.1)).is_some();
        let names = directories.iter().filter(has).map(|directory| directory.container.join(GBM.1));
        library.aliases.extend(names);
    }

    pub(super) fn opencl(&self, absent: &mut Vec<&'static str>) -> Vec<Mapped> {
        let manifest = self.manifest(OPENCL.0, OPENCL.1);
        if manifest.is_none() {
            absent.push(OPENCL.1);
        }
        manifest.into_iter().collect()
    }

    /// A manifest. In a container it is where it is in a whole system, and where loaders look for it otherwise.
    fn manifest(&self, home: &str, name: &str) -> Option<Mapped> {
        let is_system = self.container == Path::new("/");
        MANIFEST_DIRECTORIES.iter().find_map(|directory| {
            let path = under(Path::new(directory), Path::new(name));
            let real = self.file(&under(&self.directory, &path))?;
            let container = if is_system { path } else { Path::new(home).join(name) };
            Some(Mapped { host: self.system_host.join(real), container })
        })
    }

    /// Where modules of X can be, in a library directory: those of each kind in a directory of their own, or all in one.
    fn x_modules(&self, libraries: &Directory) -> Vec<(&'static str, Directory)> {
        let bases = X_MODULES.iter().flat_map(|base| {
            ["drivers", "extensions"]
                .into_iter()
                .flat_map(move |kind| [(kind, format!("{base}/{kind}")), (kind, (*base).to_owned())])
        });
        let directory = |(kind, path): (&'static str, String)| {
            let directory = self.directory_at(&libraries.real.join(&path), libraries.container.join(&path))?;
            Some((kind, directory))
        };
        bases.filter_map(directory).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::super::example::{Tree, VERSION, shared_object};
    use super::super::files::{DriverFiles, Kernel};
    use super::*;

    const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

    fn find(tree: &Tree, graphics: bool) -> DriverFiles {
        tree.root().files(Some(VERSION), &Kernel::default(), graphics).unwrap()
    }

    fn has(files: &[Mapped], container: &str) -> bool {
        files.iter().any(|file| file.container == Path::new(container))
    }

    #[test]
    fn what_is_for_graphics_alone_can_be_left_out() {
        let tree = Tree::debian();
        tree.write("usr/share/glvnd/egl_vendor.d/10_nvidia.json", b"{}");
        tree.write("etc/OpenCL/vendors/nvidia.icd", b"");
        tree.write("usr/lib/xorg/modules/drivers/nvidia_drv.so", b"");
        assert!(has(&find(&tree, true).data, "/usr/share/glvnd/egl_vendor.d/10_nvidia.json"));
        assert!(has(&find(&tree, true).data, "/usr/lib/xorg/modules/drivers/nvidia_drv.so"));
        let without = find(&tree, false).data;
        assert_eq!(without.len(), 1);
        assert!(has(&without, "/etc/OpenCL/vendors/nvidia.icd"));
    }

    #[test]
    fn a_platform_of_egl_is_the_file_that_its_soname_leads_to() {
        let tree = Tree::debian();
        for version in ["1.1.1", "1.1.2"] {
            let name = format!("{LIBRARIES}/libnvidia-egl-gbm.so.{version}");
            tree.write(&name, &shared_object("libnvidia-egl-gbm.so.1"));
        }
        symlink("libnvidia-egl-gbm.so.1.1.2", tree.path().join(LIBRARIES).join("libnvidia-egl-gbm.so.1")).unwrap();
        let files = find(&tree, true);
        let platforms: Vec<_> =
            files.libraries.iter().filter(|library| library.soname == "libnvidia-egl-gbm.so.1").collect();
        assert_eq!(platforms.len(), 1);
        assert!(platforms[0].file.container.ends_with("libnvidia-egl-gbm.so.1.1.2"));
        assert!(platforms[0].aliases[0].ends_with("libnvidia-egl-gbm.so.1"));
    }

    #[test]
    fn gbm_and_x_find_their_libraries_by_the_names_that_they_ask_for() {
        let tree = Tree::debian();
        let allocator = format!("libnvidia-allocator.so.{VERSION}");
        tree.write(&format!("{LIBRARIES}/{allocator}"), &shared_object("libnvidia-allocator.so.1"));
        fs::create_dir(tree.path().join(LIBRARIES).join("gbm")).unwrap();
        symlink(format!("../{allocator}"), tree.path().join(LIBRARIES).join(GBM.1)).unwrap();
        tree.write(&format!("usr/lib/xorg/modules/extensions/{X_GLX}.{VERSION}"), b"");
        let files = find(&tree, true);
        let library = files.libraries.iter().find(|library| library.soname == GBM.0).unwrap();
        assert!(library.aliases.contains(&Path::new("/").join(LIBRARIES).join(GBM.1)), "{:?}", library.aliases);
        let link = Path::new("/usr/lib/xorg/modules/extensions").join(X_GLX);
        assert_eq!(files.links, [(link, format!("{X_GLX}.{VERSION}"))]);
    }

    #[test]
    fn manifests_of_a_directory_are_where_loaders_look_for_them() {
        let tree = Tree::debian();
        tree.write("vulkan/icd.d/nvidia_icd.json", b"{}");
        let root = tree.root().appearing_at("/usr/local/nvidia");
        let files = root.files(Some(VERSION), &Kernel::default(), true).unwrap();
        assert!(has(&files.data, "/etc/vulkan/icd.d/nvidia_icd.json"), "{:?}", files.data);
    }
}
