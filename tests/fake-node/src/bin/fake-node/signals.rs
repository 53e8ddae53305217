//! Signals that end a node: what was started is stopped, and a temporary directory removed, before the program goes.
//!
//! The plugin runs in a process group of its own, so a Ctrl-C that a terminal sends to the whole group reaches this
//! program and a command that it runs, and leaves the plugin up until the node has been taken down in order.

use anyhow::Context;
use rustix::process::{Pid, kill_process};
use tokio::process::Child;
use tokio::signal::unix::{self, SignalKind};

/// What shells add to the number of the signal that ended a program.
const SIGNALLED: i32 = 128;

/// The signals that ask this program to end.
pub(super) struct Signals {
    interrupt: unix::Signal,
    terminate: unix::Signal,
    hangup: unix::Signal,
}

/// A signal ended what was going on.
#[derive(Debug, thiserror::Error)]
#[error("ended by signal {}", self.0.as_raw())]
pub(super) struct Interrupted(rustix::process::Signal);

// === impl Signals ===

impl Signals {
    /// From here on none of them ends the program by itself.
    pub(super) fn new() -> anyhow::Result<Self> {
        let listen = |kind| unix::signal(kind).context("cannot listen for signals");
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hangup: listen(SignalKind::hangup())?,
        })
    }

    /// Waits for the next one.
    pub(super) async fn next(&mut self) -> rustix::process::Signal {
        tokio::select! {
            _ = self.interrupt.recv() => rustix::process::Signal::INT,
            _ = self.terminate.recv() => rustix::process::Signal::TERM,
            _ = self.hangup.recv() => rustix::process::Signal::HUP,
        }
    }

    /// Does something that the next signal breaks off with [`Interrupted`].
    pub(super) async fn or<T, E>(&mut self, work: impl Future<Output = Result<T, E>>) -> anyhow::Result<T>
    where
        anyhow::Error: From<E>,
    {
        tokio::select! {
            result = work => Ok(result?),
            signal = self.next() => Err(Interrupted(signal).into()),
        }
    }

    /// Waits for a command, which the signals are meant for: it decides what they end. A terminal has sent an interrupt
    /// to the command already; the others are passed on.
    pub(super) async fn wait_for(&mut self, command: &mut Child) -> std::io::Result<std::process::ExitStatus> {
        loop {
            let signal = tokio::select! {
                status = command.wait() => return status,
                signal = self.next() => signal,
            };
            let pid = command.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
            if let Some(pid) = pid.filter(|_| signal != rustix::process::Signal::INT) {
                // One that ended in the meantime is found out about above.
                let _ = kill_process(pid, signal);
            }
        }
    }
}

// === impl Interrupted ===

impl Interrupted {
    /// What shells would make of a program that the signal ended.
    pub(super) fn exit_code(&self) -> i32 {
        SIGNALLED + self.0.as_raw()
    }
}

/// The exit code of a command, as a shell gives it.
pub(super) fn exit_code(status: std::process::ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status.code().or_else(|| Some(SIGNALLED + status.signal()?)).unwrap_or(1)
}
