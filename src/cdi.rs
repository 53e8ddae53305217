//! Container Device Interface: the file from which a container runtime learns what a prepared claim gives a container.
//!
//! Each claim has one file. Its devices are named `<claim uid>-<device>`, so a name is never used for anything else, and
//! a runtime that reads one claim's file needs no other. The kubelet hands `<kind>=<name>` to the runtime, which makes
//! these edits to the container before it starts:
//!
//! ```text
//!  every device of the claim     /dev/nvidiactl /dev/nvidia-uvm /dev/nvidia-uvm-tools [/dev/nvidia-modeset]
//!   (containerEdits of the spec) the driver's libraries, programs, firmware and sockets, bind-mounted
//!                                NVIDIA_VISIBLE_DEVICES=void     keeps NVIDIA's own runtime from adding every GPU
//!                                NVIDIA_CTK_LIBCUDA_DIR=<dir>    where libcuda is, as NVIDIA's specs say it
//!                                a hook that makes the libraries known to the container's loader
//!  each device                   /dev/nvidia<minor>
//!                                DRA_GPU_0_UUID=GPU-…            which GPU `gpu-0` is
//!  each MIG device               those, with MIG-… as the UUID, and the two capabilities that open it:
//!                                /dev/nvidia-caps/nvidia-cap<n>
//! ```
//!
//! The UUID is a variable of each device, not one list for the claim: a container may get some of a claim's devices, or
//! devices of several claims, and of two variables with one name only the last survives.
//!
//! # How a container finds libcuda
//!
//! Programs ask the dynamic loader for the SONAME, `libcuda.so.1`. The loader looks in its cache, which the image was
//! built with and which does not know the driver, and then in its built-in directories. So links have to be made and the
//! cache has to be renewed, in the container, before it starts: that is what [`Hooks`] are for. Without one, each library
//! is mounted twice: under its file name, and under every other name that it has on the host. A bind mount over a link in
//! the image lands on the link's target, and over a file it hides the file; either way the name then leads to the
//! driver's library. That suffices where the image's loader searches the directory in which the host has its libraries,
//! that is for images of the host's own family (Debian and Ubuntu: `/usr/lib/x86_64-linux-gnu`; Red Hat, SUSE and others:
//! `/usr/lib64`). An image of another family has to set `LD_LIBRARY_PATH` to `$NVIDIA_CTK_LIBCUDA_DIR`. The spec must not
//! set it, because it would replace the image's own.

mod edits;
#[cfg(test)]
pub(crate) mod example;
mod hooks;
mod spec;
#[cfg(test)]
mod tests;
mod writer;

pub use edits::{Found, Incomplete, MigTarget, Sources, Target};
pub use hooks::Hooks;
pub use spec::{ContainerEdits, Device, DeviceNode, Hook, Kind, Mount, Spec};
pub use writer::{WriteError, Writer};
