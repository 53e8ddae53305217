//! A prepare from the moment it is asked for until it is answered, with all that it waits for.
//!
//! The kubelet gives a call up after 45 s, and a prepare that failed comes back only after another 60 to 90 s. What may
//! pass by itself is therefore waited out inside the call, within one budget for everything:
//!
//! ```text
//!  begin ──▶ read the claim ──▶ try ──▶ done, or it takes somebody to act ──▶ answer
//!   0 s        until 20 s        ▲ │     (until 30 s for its turn, then work that runs to its end)
//!                                │ └──▶ it may pass by itself
//!                                │          │  no lock is held, nothing is on disk
//!                                └── news ──┤  another claim was released · the GPUs have changed ·
//!                                           │  files are looked for again, after 250 ms to 2 s, and so is what another
//!                                           │  plugin process has released
//!                                           ├─ 30 s are over: what stood in the way is the answer
//!                                           └─ unprepare, SIGTERM: ends at once
//! ```
//!
//! Which error may pass, and by what, is said beside the errors: [`Error::remedy`]. News is a signal that is armed before
//! each try, so that none is lost between a try and the wait after it. Waiting takes no thread.

use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::error::{Error, Remedy};
use super::machine::Machine;
use super::{Attempt, LockError, PreparedDevice, Shared};
use crate::claim::Claim;
use crate::claim::plan::PlanError;
use crate::inventory::Views;

/// For a prepare, from the kubelet's call until its last turn has come. Work takes milliseconds, but for that of NVML.
pub(super) const BUDGET: Duration = Duration::from_secs(30);

/// What NVML has for its work after that: with a budget that was spent on waiting, the answer still comes before the
/// kubelet's 45 s, and says why.
pub(super) const WORK: Duration = Duration::from_secs(10);

/// What reading the claim leaves of that: the next look at the GPUs comes within 10 s.
const AFTER_READING: Duration = Duration::from_secs(10);

/// Between looks for files, from and to. Each costs some 2000 system calls (3 ms).
const LOOKS: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(2)];

/// What there can be other work on, see [`Error::AtWork`].
pub(super) const THE_CLAIM: &str = "this claim";
/// See [`THE_CLAIM`].
pub(super) const ITS_GPUS: &str = "a GPU of this claim";

/// What has happened that may help.
struct News {
    machine: Arc<Machine>,
    views: Views,
    released: watch::Receiver<()>,
    looks: ExponentialBackoff,
}

// === impl Attempt ===

impl Attempt {
    /// Until when the claim should be read.
    pub fn read_by(&self) -> Instant {
        self.deadline - AFTER_READING
    }

    /// Waits until the claim is read, but not once nobody needs it any more.
    pub async fn read<T>(&self, read: impl Future<Output = T>) -> Result<T, Error> {
        let result = self.unless_over(read).await;
        self.preparer.shared.count("prepare", &result);
        result
    }

    /// Goes on, with the claim as it was read: see [`Preparer::prepare`].
    pub async fn prepare(self, claim: Claim) -> Result<Vec<PreparedDevice>, Error> {
        let result = self.try_until_done(&claim).await;
        self.preparer.shared.count("prepare", &result);
        result
    }

    /// Ends without having prepared anything, because the claim could not be read. For the `cause`, see
    /// [`Error::cause`].
    pub fn give_up(self, cause: &'static str) {
        self.preparer.shared.metrics.failed("prepare", cause);
    }

    async fn try_until_done(&self, claim: &Claim) -> Result<Vec<PreparedDevice>, Error> {
        let shared = &self.preparer.shared;
        let mut news = News::of(shared);
        let mut said = None;
        loop {
            news.arm();
            let error = match shared.prepare(claim, self).await {
                Ok(devices) => return Ok(devices),
                Err(error) => error,
            };
            let Some(remedy) = error.remedy() else { return Err(error) };
            if let Error::Plan(PlanError::InUse { holder, .. }) = &error {
                shared.contested.send_if_modified(|claims| claims.insert(holder.uid.clone()));
            }
            let reason = error.to_string();
            if said.as_ref() != Some(&reason) {
                tracing::info!(reason, "waiting for what may pass");
                said = Some(reason);
            }
            match timeout_at(self.deadline, self.unless_over(news.wait_for(remedy))).await {
                Ok(Ok(true)) => {}
                Ok(Ok(false)) | Err(_) => return Err(error),
                Ok(Err(over)) => return Err(over),
            }
        }
    }

    /// Waits for the turn to work on `what`, within the budget. The work itself is then nobody's to end.
    pub(super) async fn turn<T>(
        &self,
        what: &'static str,
        turn: impl Future<Output = Result<T, LockError>>,
    ) -> Result<T, Error> {
        tokio::select! {
            biased;
            // Whoever need not wait goes on though the plugin stops.
            held = turn => held.map_err(Error::from),
            over = self.unless_over(sleep_until(self.deadline)) => Err(over.err().unwrap_or(Error::AtWork { what })),
        }
    }

    /// Waits for something that has no effects, unless the attempt is called off or the plugin stops.
    async fn unless_over<T>(&self, event: impl Future<Output = T>) -> Result<T, Error> {
        tokio::select! {
            biased;
            () = self.ticket.called_off() => Err(Error::CalledOff),
            () = self.preparer.shared.stopping.cancelled() => Err(Error::Stopping),
            happened = event => Ok(happened),
        }
    }
}

/// Waits for the turn to work on `what`, which is nobody's to call off.
pub(super) async fn turn_by<T>(
    by: Instant,
    what: &'static str,
    turn: impl Future<Output = Result<T, LockError>>,
) -> Result<T, Error> {
    timeout_at(by, turn).await.map_err(|_| Error::AtWork { what })?.map_err(Error::from)
}

/// The pauses between looks for what nobody tells of.
pub(super) fn looks() -> ExponentialBackoff {
    let [min, max] = LOOKS;
    ExponentialBuilder::new().with_min_delay(min).with_max_delay(max).without_max_times().build()
}

// === impl News ===

impl News {
    fn of(shared: &Shared) -> Self {
        Self {
            machine: Arc::clone(&shared.machine),
            views: shared.views.clone(),
            released: shared.released.subscribe(),
            looks: looks(),
        }
    }

    /// From now on, what happens is news.
    fn arm(&mut self) {
        self.views.current.mark_unchanged();
        self.views.failure.mark_unchanged();
        self.released.mark_unchanged();
    }

    /// Waits for it; `false` if there will be none any more.
    async fn wait_for(&mut self, remedy: Remedy) -> bool {
        match remedy {
            Remedy::Look => tokio::select! {
                changed = self.views.current.changed() => changed.is_ok(),
                // No help, but what is answered in the end is to say why.
                changed = self.views.failure.changed() => changed.is_ok(),
            },
            Remedy::Release => self.release().await,
            Remedy::Files => {
                sleep(self.pause()).await;
                true
            }
        }
    }

    /// Another process, during a rolling update, does not tell of what it releases.
    async fn release(&mut self) -> bool {
        let beside_others = self.machine.may_have_news();
        loop {
            let pause = self.pause();
            tokio::select! {
                released = self.released.changed() => return released.is_ok(),
                () = sleep(pause) => if beside_others || self.machine.may_have_news() { return true },
            }
        }
    }

    fn pause(&mut self) -> Duration {
        self.looks.next().unwrap_or(LOOKS[1])
    }
}
