//! What makes it impossible to begin: exit 1, and one sentence that says what to change.

use std::fs;
use std::net::TcpListener;

use super::machine::Machine;

/// The last words of a plugin that cannot start with these flags.
async fn last_words(machine: &Machine, flags: &[&str]) -> String {
    let mut plugin = fake_node::plugin::Plugin::start(&machine.settings(flags)).unwrap();
    let status = plugin.wait("end").await.unwrap();
    let log = plugin.log().unwrap();
    assert_eq!(status.code(), Some(1), "{log}");
    assert!(!log.contains("panicked"), "{log}");
    let last = log.lines().last().unwrap();
    last.split_once(" ERROR gpu_dra_plugin: ").unwrap_or_else(|| panic!("{log}")).1.to_owned()
}

fn assert_says(sentence: &str, words: &[&str]) {
    assert!(words.iter().all(|words| sentence.contains(words)), "{words:?} are not in: {sentence}");
}

#[tokio::test]
async fn a_port_in_use_names_the_address_and_the_flag() {
    let machine = Machine::builtin("one-gpu").await;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let sentence = last_words(&machine, &[&format!("--http-endpoint={address}")]).await;
    assert_says(&sentence, &[&address, "--http-endpoint", "in use"]);
}

#[tokio::test]
async fn a_kubeconfig_that_cannot_be_used_is_named_with_what_is_wrong_with_it() {
    let machine = Machine::builtin("one-gpu").await;
    let path = machine.node.dir().join("wrong");
    let flag = format!("--kubeconfig={}", path.display());
    let name = path.to_str().unwrap();
    assert_says(&last_words(&machine, &[&flag]).await, &["cannot use kubeconfig", name, "No such file"]);
    for (content, words) in
        [("", "current"), ("{{{", "parse"), ("apiVersion: v1\nkind: Config\ncurrent-context: nowhere\n", "nowhere")]
    {
        fs::write(&path, content).unwrap();
        assert_says(&last_words(&machine, &[&flag]).await, &["cannot use kubeconfig", name, words]);
    }
}

#[tokio::test]
async fn no_kubeconfig_outside_a_pod_is_told_what_to_name() {
    let machine = Machine::builtin("one-gpu").await;
    let mut settings = machine.settings(&[]);
    settings.args.retain(|argument| !argument.starts_with("--kubeconfig="));
    let mut plugin = fake_node::plugin::Plugin::start(&settings).unwrap();
    assert_eq!(plugin.wait("end").await.unwrap().code(), Some(1));
    assert_says(&plugin.log().unwrap(), &["not a pod with a service account", "--kubeconfig"]);
}

#[tokio::test]
async fn directories_that_cannot_be_written_are_named_with_their_flag() {
    let machine = Machine::builtin("one-gpu").await;
    // Not even root can make a directory below a file.
    let file = machine.node.dir().join("file");
    fs::write(&file, "").unwrap();
    for flag in
        ["--kubelet-root", "--kubelet-plugins-directory-path", "--kubelet-registrar-directory-path", "--cdi-root"]
    {
        let below = file.join("below");
        let sentence = last_words(&machine, &[&format!("{flag}={}", below.display())]).await;
        assert_says(&sentence, &[file.to_str().unwrap(), flag, "not a directory"]);
    }
}

#[tokio::test]
async fn a_socket_path_that_is_too_long_says_how_long_it_is_and_may_be() {
    let machine = Machine::builtin("one-gpu").await;
    let root = machine.node.dir().join("k".repeat(90));
    let sentence = last_words(&machine, &[&format!("--kubelet-root={}", root.display())]).await;
    assert_says(&sentence, &["bytes and may have 107", "--kubelet-root"]);
}

#[tokio::test]
async fn a_second_plugin_on_one_node_is_refused_and_the_first_stays() {
    let machine = Machine::builtin("one-gpu").await;
    let mut first = machine.start_ready().await;
    let settings = fake_node::plugin::PluginSettings {
        log: machine.node.dir().join("second.log"),
        ..machine.node.plugin_settings()
    };
    let mut second = fake_node::plugin::Plugin::start(&settings).unwrap();
    assert_eq!(second.wait("end").await.unwrap().code(), Some(1));
    assert_says(&second.log().unwrap(), &["is a second instance of the plugin running on this node?"]);
    assert_eq!(first.get("/readyz").await.unwrap().0, 200);
}

#[tokio::test]
async fn names_of_a_newer_version_stay_and_say_what_to_do() {
    let machine = Machine::builtin("one-gpu").await;
    fs::create_dir_all(machine.node.plugin_dir()).unwrap();
    let path = machine.node.plugin_dir().join("names.json");
    fs::write(&path, r#"{"version": 9}"#).unwrap();
    let sentence = last_words(&machine, &[]).await;
    assert_says(&sentence, &[path.to_str().unwrap(), "newer version", "run that version again", "drain the node"]);
    assert_eq!(fs::read_to_string(&path).unwrap(), r#"{"version": 9}"#);
}

#[tokio::test]
async fn a_proc_root_that_is_none_is_named_with_its_flag() {
    let machine = Machine::builtin("one-gpu").await;
    let sentence = last_words(&machine, &["--proc-root=/nowhere"]).await;
    assert_says(&sentence, &["below /nowhere", "--proc-root"]);
}
