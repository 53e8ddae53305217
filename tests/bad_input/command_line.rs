//! Command lines that cannot be meant: exit 64 (`EX_USAGE`), and one sentence that says what to write instead.

use std::process::{Command, Output};

use clap::{Arg, CommandFactory};
use gpu_dra_plugin::args::Args;

/// Runs the plugin in an empty environment. Only for command lines with which it ends by itself.
fn run(args: &[&str], env: &[(&str, &str)]) -> Output {
    let mut plugin = Command::new(env!("CARGO_BIN_EXE_gpu-dra-plugin"));
    plugin.args(args).env_clear().envs(env.iter().copied()).output().unwrap()
}

/// The sentence with which a command line is refused.
fn refusal(args: &[&str], env: &[(&str, &str)]) -> String {
    let Output { status, stdout, stderr } = run(args, env);
    let text = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(64), "{args:?} {env:?}: {text}");
    assert!(stdout.is_empty(), "{args:?} {env:?}");
    let sentence = text.lines().next().unwrap();
    assert!(sentence.starts_with("error: ") && !text.contains("panicked"), "{args:?} {env:?}: {text}");
    sentence.to_owned()
}

/// All flags that `--help` shows.
fn flags() -> Vec<Arg> {
    Args::command().get_arguments().filter(|flag| !flag.is_hide_set()).cloned().collect()
}

fn env(flag: &Arg) -> &str {
    flag.get_env().unwrap().to_str().unwrap()
}

#[test]
fn an_unknown_flag_a_missing_one_and_a_subcommand_are_refused() {
    let cases: [(&[&str], &str); 5] = [
        (&["--node-name=a", "--gpus=all"], "unexpected argument '--gpus' found"),
        (&["--node-name=a", "--node-nmae=b"], "unexpected argument '--node-nmae' found"),
        (&["--node-name=a", "serve"], "unexpected argument 'serve' found"),
        (&["--node-name=a", "--node-name=b"], "the argument '--node-name <NAME>' cannot be used multiple times"),
        (&["--node-name=a", "--cdi-root"], "a value is required for '--cdi-root <DIR>' but none was supplied"),
    ];
    for (args, sentence) in cases {
        assert_eq!(refusal(args, &[]), format!("error: {sentence}"));
    }
    // The sentence ends with a colon, and the flags that are missing follow.
    assert!(refusal(&[], &[]).starts_with("error: the following required arguments were not provided:"));
}

#[test]
fn values_that_cannot_be_meant_are_refused_by_flag_and_by_environment() {
    let long = "n".repeat(254);
    let cases = [
        ("node-name", "", "the value is empty"),
        ("node-name", "Node A", "expected lower-case DNS labels joined by dots"),
        ("node-name", "a/../b", "expected lower-case DNS labels joined by dots"),
        ("node-name", &long, "at most 253 characters"),
        ("driver-name", "", "the value is empty"),
        ("driver-name", "GPU", "such as gpu.nvidia.com"),
        ("driver-name", "../gpu", "expected lower-case DNS labels"),
        ("pod-uid", "", "the value is empty"),
        ("pod-uid", "../../x", "only letters, digits and '-'"),
        ("http-endpoint", "8080", "expected host:port, :port or off"),
        ("http-endpoint", ":eighty", "expected host:port, :port or off"),
        ("log-format", "yaml", "invalid value 'yaml'"),
        ("log-level", "loud", "expected error, warn, info, debug, trace, off"),
        ("log-level", "info,hyper", "expected error, warn, info, debug, trace, off"),
        ("log-level", "info,hyper=loud", "expected error, warn, info, debug, trace, off"),
        ("log-level", "", "the value is empty"),
    ];
    // Hidden ones too.
    let command = Args::command();
    for (name, value, words) in cases {
        let flag = command.get_arguments().find(|flag| flag.get_long() == Some(name)).unwrap();
        let others = ["--node-name=a"];
        let others = if name == "node-name" { &[][..] } else { &others };
        let given = format!("--{name}={value}");
        for sentence in [refusal(&[others, &[given.as_str()]].concat(), &[]), refusal(others, &[(env(flag), value)])] {
            assert!(sentence.contains(&format!("'--{name} ")) && sentence.contains(words), "{sentence}");
        }
    }
}

#[test]
fn paths_that_are_empty_or_relative_are_refused_by_flag_and_by_environment() {
    let is_path = |flag: &Arg| flag.get_value_names().is_some_and(|names| names[0] == "DIR" || names[0] == "FILE");
    let paths: Vec<_> = flags().into_iter().filter(is_path).collect();
    assert_eq!(paths.len(), 13, "{paths:?}");
    for flag in paths {
        let name = flag.get_long().unwrap();
        for (value, words) in [
            ("", "the path is empty; leave the setting out to get the default"),
            ("var/lib", "the path must be absolute"),
        ] {
            for sentence in [
                refusal(&["--node-name=a", &format!("--{name}={value}")], &[]),
                refusal(&["--node-name=a"], &[(env(&flag), value)]),
            ] {
                assert!(sentence.contains(&format!("'--{name} ")) && sentence.ends_with(words), "{sentence}");
            }
        }
    }
}

#[test]
fn help_and_version_are_answers_and_help_names_every_flag_with_its_environment_twin() {
    for help in ["--help", "-h"] {
        let Output { status, stdout, stderr } = run(&[help], &[]);
        assert_eq!((status.code(), stderr.len()), (Some(0), 0), "{help}");
        let text = String::from_utf8(stdout).unwrap();
        // Lines are broken anywhere.
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for flag in flags().iter().filter(|flag| !["help", "version"].contains(&flag.get_id().as_str())) {
            let value = if flag.get_action().takes_values() { " <" } else { " " };
            for name in [format!("--{}{value}", flag.get_long().unwrap()), format!("[env: {}=]", env(flag))] {
                assert!(text.contains(&name), "{help} does not name {name}:\n{text}");
            }
        }
    }
    let Output { status, stdout, .. } = run(&["--version"], &[]);
    assert_eq!(status.code(), Some(0));
    assert_eq!(String::from_utf8(stdout).unwrap(), concat!("gpu-dra-plugin ", env!("CARGO_PKG_VERSION"), "\n"));
}
