//! The plugin under test: the real binary as a process, with its log in a file.
//!
//! A process and not a function call, because what matters is visible from outside: sockets, files, exit codes, and what
//! a kill leaves behind.

use std::fs::{self, File};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

use crate::http;

/// How often the log is read again while waiting for a line in it.
const LOG_LOOK: Duration = Duration::from_millis(20);

/// How long a plugin may take to do anything that a scenario waits for. Machines that run tests can be very slow.
const PATIENCE: Duration = Duration::from_secs(60);

/// What to run, and how.
#[derive(Debug, Clone)]
pub struct PluginSettings {
    /// The `gpu-dra-plugin` binary, or another with the same flags.
    pub binary: PathBuf,
    /// All its arguments.
    pub args: Vec<String>,
    /// Where its log goes; appended by each start.
    pub log: PathBuf,
}

/// A running plugin. Killed when dropped.
#[derive(Debug)]
pub struct Plugin {
    child: Child,
    log: PathBuf,
    /// Where this run's lines begin in the log.
    start: u64,
}

/// Why a plugin could not be run or asked.
#[derive(Debug, thiserror::Error)]
pub enum PluginError {
    /// The process could not be started, signalled or awaited.
    #[error("cannot {act} {}", binary.display())]
    Process {
        /// What was tried.
        act: &'static str,
        /// On what.
        binary: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// The log could not be read.
    #[error("cannot read the plugin's log {}", path.display())]
    Log {
        /// Which file.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// It did not do what was waited for.
    #[error("the plugin did not {what} within {PATIENCE:?}; its log:\n{log}")]
    Late {
        /// What was waited for.
        what: String,
        /// All it said in this run.
        log: String,
    },
    /// It ended while it was waited for.
    #[error("the plugin ended ({status}) before it could {what}; its log:\n{log}")]
    Ended {
        /// How it ended.
        status: ExitStatus,
        /// What was waited for.
        what: String,
        /// All it said in this run.
        log: String,
    },
    /// Its HTTP endpoint did not answer.
    #[error("the plugin's HTTP endpoint does not answer {path}")]
    Http {
        /// What was asked.
        path: String,
        /// Why it failed.
        source: io::Error,
    },
}

// === impl Plugin ===

impl Plugin {
    /// Starts it.
    pub fn start(settings: &PluginSettings) -> Result<Self, PluginError> {
        let PluginSettings { binary, args, log } = settings;
        let log_error = |source| PluginError::Log { path: log.clone(), source };
        let output = File::options().create(true).append(true).open(log).map_err(log_error)?;
        let start = output.metadata().map_err(log_error)?.len();
        let child = Command::new(binary)
            .args(args)
            // Its settings are its arguments: what the scenario's own environment has must not leak in.
            .env_clear()
            .stdin(Stdio::null())
            .stdout(output.try_clone().map_err(log_error)?)
            .stderr(output)
            // The Ctrl-C of a terminal goes to a whole group: whoever runs the scenario decides what it ends.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|source| PluginError::Process { act: "start", binary: binary.clone(), source })?;
        Ok(Self { child, log: log.clone(), start })
    }

    /// Its process id; `None` once it has ended.
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// What it has said in this run.
    pub fn log(&self) -> Result<String, PluginError> {
        let bytes = fs::read(&self.log).map_err(|source| PluginError::Log { path: self.log.clone(), source })?;
        let start = usize::try_from(self.start).unwrap_or(usize::MAX).min(bytes.len());
        Ok(String::from_utf8_lossy(&bytes[start..]).into_owned())
    }

    /// Waits until a line of this run's log contains `text`, and gives that line.
    pub async fn wait_for_log(&mut self, text: &str) -> Result<String, PluginError> {
        let what = || format!("say {text:?}");
        let look = async {
            loop {
                // The exit is looked at before the log, so that what it said last is seen.
                let ended = self.try_wait()?;
                let log = self.log()?;
                if let Some(line) = log.lines().find(|line| line.contains(text)) {
                    return Ok(line.to_owned());
                }
                if let Some(status) = ended {
                    return Err(PluginError::Ended { status, what: what(), log });
                }
                sleep(LOG_LOOK).await;
            }
        };
        match timeout(PATIENCE, look).await {
            Ok(result) => result,
            Err(_) => Err(PluginError::Late { what: what(), log: self.log()? }),
        }
    }

    /// Where it serves HTTP.
    pub async fn http_address(&mut self) -> Result<SocketAddr, PluginError> {
        let line = self.wait_for_log("address=").await?;
        let text = line.rsplit("address=").next().unwrap_or_default();
        let what = || "say where it serves HTTP".to_owned();
        text.trim().parse().map_err(|_| PluginError::Late { what: what(), log: line.clone() })
    }

    /// Asks its HTTP endpoint, for example for `/readyz`: status code and body.
    pub async fn get(&mut self, path: &str) -> Result<(u16, String), PluginError> {
        let address = self.http_address().await?;
        http::request("GET", address, path).await.map_err(|source| PluginError::Http { path: path.to_owned(), source })
    }

    /// Waits until `/readyz` says that the node can be used.
    pub async fn wait_until_ready(&mut self) -> Result<(), PluginError> {
        let ready = async {
            loop {
                if self.get("/readyz").await?.0 == 200 {
                    return Ok(());
                }
                sleep(LOG_LOOK).await;
            }
        };
        match timeout(PATIENCE, ready).await {
            Ok(result) => result,
            Err(_) => Err(PluginError::Late { what: "become ready".to_owned(), log: self.log()? }),
        }
    }

    /// Sends SIGTERM and waits for the end.
    pub async fn terminate(mut self) -> Result<ExitStatus, PluginError> {
        if let Some(pid) =
            self.child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(rustix::process::Pid::from_raw)
        {
            rustix::process::kill_process(pid, rustix::process::Signal::TERM)
                .map_err(|error| process("end", &self.log, error.into()))?;
        }
        self.wait("end after SIGTERM").await
    }

    /// Sends SIGKILL and waits for the end.
    pub async fn kill(mut self) -> Result<ExitStatus, PluginError> {
        self.child.start_kill().map_err(|source| process("kill", &self.log, source))?;
        self.wait("end after SIGKILL").await
    }

    /// Waits for it to end by itself.
    pub async fn wait(&mut self, what: &str) -> Result<ExitStatus, PluginError> {
        match timeout(PATIENCE, self.child.wait()).await {
            Ok(status) => status.map_err(|source| process("wait for", &self.log, source)),
            Err(_) => Err(PluginError::Late { what: what.to_owned(), log: self.log()? }),
        }
    }

    fn try_wait(&mut self) -> Result<Option<ExitStatus>, PluginError> {
        self.child.try_wait().map_err(|source| process("wait for", &self.log, source))
    }
}

fn process(act: &'static str, log: &Path, source: io::Error) -> PluginError {
    PluginError::Process { act, binary: log.with_file_name("the plugin"), source }
}
