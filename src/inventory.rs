//! Finds the node's GPUs: NVML and sysfs → [`device::Node`](crate::device::Node).

use std::sync::Arc;

use tokio::sync::watch;

use crate::device::Node;

/// What the other rooms see of the inventory: `None` until NVML has answered once.
pub type Current = watch::Receiver<Option<Arc<Node>>>;
