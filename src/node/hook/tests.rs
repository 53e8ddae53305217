use std::os::unix::fs::MetadataExt;

use super::*;

/// A plugin's program with a hook beside it, a plugin directory, and a host.
struct Place {
    directory: tempfile::TempDir,
}

// === impl Place ===

impl Place {
    fn new() -> Self {
        let place = Self { directory: tempfile::tempdir().unwrap() };
        for name in ["bin", "plugin"] {
            fs::create_dir(place.path(name)).unwrap();
        }
        place
    }

    fn path(&self, relative: &str) -> PathBuf {
        self.directory.path().join(relative)
    }

    fn ship(&self, content: &str) {
        fs::write(self.path("bin/gpu-dra-hook"), content).unwrap();
    }

    fn choose(&self, choice: Choice) -> Result<Hooks, String> {
        let chosen = choice.carry_out_beside(&self.path("bin/gpu-dra-plugin"), &self.path("plugin"));
        chosen.map_err(|error| error.to_string())
    }

    fn host_program(&self, path: &str, mode: u32) {
        let path = self.path(&format!("host{path}"));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "").unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
}

fn nothing_said() -> Choice {
    Choice { hook: None, directory: None, nvidia: None, host: Some("/".into()), lacking: None }
}

fn said(hook: HookKind) -> Choice {
    Choice { hook: Some(hook), ..nothing_said() }
}

#[test]
fn the_hook_beside_the_plugin_is_installed_where_the_runtime_can_run_it() {
    let place = Place::new();
    place.ship("first");
    let path = place.path("plugin/gpu-dra-hook");
    assert_eq!(place.choose(nothing_said()), Ok(Hooks::Own(path.clone())));
    assert_eq!(fs::read_to_string(&path).unwrap(), "first");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o755);
}

#[test]
fn a_hook_that_is_installed_is_not_written_again_and_a_new_one_replaces_it_under_the_same_name() {
    let place = Place::new();
    place.ship("first");
    let inode = || fs::metadata(place.path("plugin/gpu-dra-hook")).unwrap().ino();
    place.choose(nothing_said()).unwrap();
    let first = inode();
    place.choose(nothing_said()).unwrap();
    assert_eq!(inode(), first);
    place.ship("second");
    // A program that runs can be replaced, but not written to.
    let path = place.choose(nothing_said()).unwrap();
    assert_eq!(path, Hooks::Own(place.path("plugin/gpu-dra-hook")));
    assert_ne!(inode(), first);
    fs::set_permissions(place.path("plugin/gpu-dra-hook"), fs::Permissions::from_mode(0o644)).unwrap();
    place.choose(nothing_said()).unwrap();
    assert_eq!(fs::metadata(place.path("plugin/gpu-dra-hook")).unwrap().permissions().mode() & 0o7777, 0o755);
    assert_eq!(fs::read_dir(place.path("plugin")).unwrap().count(), 1);
}

#[test]
fn without_a_hook_beside_the_plugin_there_is_none_unless_it_was_asked_for() {
    let place = Place::new();
    assert_eq!(place.choose(nothing_said()), Ok(Hooks::None));
    let error = place.choose(said(HookKind::Own)).unwrap_err();
    let expected = "bin/gpu-dra-hook does not exist: use an image that has it, or --hook=none";
    assert!(error.ends_with(expected), "{error}");
    place.ship("");
    assert_eq!(place.choose(said(HookKind::None)), Ok(Hooks::None));
}

#[test]
fn a_directory_can_be_named_and_is_made() {
    let place = Place::new();
    place.ship("first");
    let directory = place.path("opt/hooks");
    let choice = Choice { directory: Some(directory.clone()), ..nothing_said() };
    assert_eq!(place.choose(choice), Ok(Hooks::Own(directory.join("gpu-dra-hook"))));
}

#[test]
fn a_directory_from_which_nothing_can_be_run_is_refused() {
    // Mounted noexec on every machine that follows the recommendations of its kernel.
    if !is_noexec(Path::new("/proc")).unwrap() {
        return;
    }
    let place = Place::new();
    place.ship("first");
    let choice = Choice { directory: Some("/proc".into()), ..nothing_said() };
    let error = place.choose(choice).unwrap_err();
    assert!(error.starts_with("no program can be run from /proc, because it is mounted noexec: set --hook-directory"));
    assert!(!is_noexec(place.directory.path()).unwrap());
}

#[test]
fn nvidias_hook_is_looked_for_on_the_host_and_missed_in_words() {
    let place = Place::new();
    let choice = |nvidia: Option<&str>| Choice {
        nvidia: nvidia.map(PathBuf::from),
        host: Some(place.path("host")),
        ..said(HookKind::NvidiaCdiHook)
    };
    place.host_program("/usr/bin/nvidia-cdi-hook", 0o644);
    let error = place.choose(choice(None)).unwrap_err();
    assert!(error.contains("looked for at /usr/bin/nvidia-cdi-hook, /usr/local/nvidia/toolkit/"), "{error}");
    place.host_program("/usr/local/bin/nvidia-cdi-hook", 0o755);
    assert_eq!(place.choose(choice(None)), Ok(Hooks::Nvidia("/usr/local/bin/nvidia-cdi-hook".into())));
    let error = place.choose(choice(Some("/opt/nvidia-cdi-hook"))).unwrap_err();
    assert!(error.contains("looked for at /opt/nvidia-cdi-hook;"), "{error}");
}

#[test]
fn nvidias_hook_must_be_named_where_the_host_is_not_seen() {
    let place = Place::new();
    let choice = |nvidia| Choice { nvidia, host: None, ..said(HookKind::NvidiaCdiHook) };
    assert!(place.choose(choice(None)).unwrap_err().contains("set --nvidia-cdi-hook-path"));
    let path = PathBuf::from("/opt/nvidia-cdi-hook");
    assert_eq!(place.choose(choice(Some(path.clone()))), Ok(Hooks::Nvidia(path)));
}

#[test]
fn a_kernel_that_is_too_old_for_the_hook_means_none_unless_it_was_asked_for() {
    let place = Place::new();
    place.ship("first");
    let old = |choice| Choice { lacking: Some("openat2"), ..choice };
    assert_eq!(place.choose(old(nothing_said())), Ok(Hooks::None));
    assert!(!place.path("plugin/gpu-dra-hook").exists());
    let error = place.choose(old(said(HookKind::Own))).unwrap_err();
    let expected = "the plugin's hook needs Linux 5.8 or newer, and this kernel has no openat2: choose another --hook";
    assert_eq!(error, expected);
    assert_eq!(lacking(), None, "the tests run on a newer one");
}

#[test]
fn a_directory_that_only_its_owner_enters_is_told_as_the_host_has_it() {
    let place = Place::new();
    let hook = Path::new("/kubelet/plugins/gpu-dra-hook");
    fs::create_dir_all(place.path("kubelet/plugins")).unwrap();
    let mode = |path, mode| fs::set_permissions(place.path(path), fs::Permissions::from_mode(mode)).unwrap();
    mode("", 0o755);
    mode("kubelet", 0o711);
    assert_eq!(closed_above(hook, Some(&place.path(""))), None);
    mode("kubelet", 0o750);
    assert_eq!(closed_above(hook, Some(&place.path(""))), Some("/kubelet".into()));
    assert_eq!(closed_above(hook, None), None, "another machine's");
}
