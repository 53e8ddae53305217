//! The lifecycle: which node directory, who has initialised the library, and when it ends.

use std::env;
use std::ffi::{CStr, OsStr, c_char, c_uint};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use nvml_wrapper_sys::bindings::nvmlReturn_t;
use topology::{NodeDir, State};

use crate::call::{Call, guard};
use crate::code::{Answer, Code, describe};
use crate::fault::About;
use crate::node::Node;
use crate::report::report_panics;
use crate::{events, fault};

/// Names the node directory.
const DIR_VARIABLE: &str = "MOCK_NVML_DIR";

/// The node directory beside the library, where the variable is not set.
const DIR_BESIDE_LIBRARY: &str = "mock-nvml";

/// `NVML_INIT_FLAG_NO_GPUS`: succeed even when there is no GPU.
const NO_GPUS: c_uint = 1;

/// The users of the library in this process.
static SESSION: Mutex<Session> = Mutex::new(Session { users: 0, node: None });

/// The driver version this loaded library belongs to; on a real node it is compiled in.
static BUILT_FOR: OnceLock<String> = OnceLock::new();

/// Init calls without their shutdown, and the machine they share.
struct Session {
    users: u32,
    node: Option<Arc<Node>>,
}

/// The machine of the running session.
pub(crate) fn current() -> Answer<Arc<Node>> {
    session().node.clone().ok_or(Code::UNINITIALIZED)
}

/// The driver version that this library works with: the one of its first call.
pub(crate) fn built_for(node: &Node, state: &State) -> &'static str {
    BUILT_FOR.get_or_init(|| node.driver_version(state).to_owned())
}

/// See `nvml.h`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlInit() -> nvmlReturn_t {
    guard(|| init("nvmlInit", 0))
}

/// See `nvml.h`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlInit_v2() -> nvmlReturn_t {
    guard(|| init("nvmlInit_v2", 0))
}

/// See `nvml.h`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlInitWithFlags(flags: c_uint) -> nvmlReturn_t {
    guard(|| init("nvmlInitWithFlags", flags))
}

/// See `nvml.h`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlShutdown() -> nvmlReturn_t {
    guard(|| {
        let node = current()?;
        node.log("nvmlShutdown", None);
        let (_, late) = fault::meet(&node, "nvmlShutdown", About::NoGpu)?;
        shutdown()?;
        late.map_or(Ok(()), |fault| fault::suffer(&node, &fault))
    })
}

/// See `nvml.h`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlErrorString(result: nvmlReturn_t) -> *const c_char {
    describe(result).as_ptr()
}

fn init(name: &'static str, flags: c_uint) -> Answer {
    report_panics();
    let dir = node_dir().ok_or(Code::DRIVER_NOT_LOADED)?;
    let node = Arc::new(Node::open(NodeDir::open(dir))?);
    let call = Call::check(name, node, About::NoGpu)?;
    if call.node.visible.is_empty() && flags & NO_GPUS == 0 {
        return Err(Code::GPU_NOT_FOUND);
    }
    let mut session = session();
    session.users += 1;
    session.node.get_or_insert(Arc::clone(&call.node));
    drop(session);
    call.end(Ok(()))
}

fn shutdown() -> Answer {
    let mut session = session();
    session.users = session.users.checked_sub(1).ok_or(Code::UNINITIALIZED)?;
    if session.users == 0 {
        session.node = None;
        events::clear();
    }
    Ok(())
}

fn session() -> MutexGuard<'static, Session> {
    SESSION.lock().unwrap_or_else(PoisonError::into_inner)
}

fn node_dir() -> Option<PathBuf> {
    if let Some(dir) = env::var_os(DIR_VARIABLE).filter(|dir| !dir.is_empty()) {
        return Some(dir.into());
    }
    let beside = library_path()?.with_file_name(DIR_BESIDE_LIBRARY);
    beside.is_dir().then_some(beside)
}

/// The file that this library was loaded from, symlinks resolved.
fn library_path() -> Option<PathBuf> {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: any address may be asked for, and the struct is zeroed and large enough.
    let found = unsafe { libc::dladdr(nvmlInit_v2 as *const libc::c_void, info.as_mut_ptr()) };
    // SAFETY: all-zero bytes are a valid Dl_info, so it is initialised whether or not the call filled it.
    let name = unsafe { info.assume_init() }.dli_fname;
    if found == 0 || name.is_null() {
        return None;
    }
    // SAFETY: dladdr returned a C string that lives as long as the library is loaded.
    let name = unsafe { CStr::from_ptr(name) };
    Path::new(OsStr::from_bytes(name.to_bytes())).canonicalize().ok()
}
