//! What the mock says to people, on standard error: a damaged topology, and defects of its own.

use std::error::Error;
use std::fmt::Display;
use std::io::{self, Write};
use std::iter;
use std::panic;
use std::sync::Once;

/// Guards the panic hook of this library's own standard library, which is not the program's.
static PANIC_HOOK: Once = Once::new();

/// Says something.
pub(crate) fn tell(what: &dyn Display) {
    // There is nobody to tell that standard error is closed.
    let _ = writeln!(io::stderr(), "mock-nvml: {what}");
}

/// Says what went wrong, and why.
pub(crate) fn tell_error(error: &(dyn Error + 'static)) {
    let causes = iter::successors(error.source(), |&cause| cause.source());
    tell(&causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}")));
}

/// Reports panics in our own words. The standard hook asks for the thread's name, and that leaves a hook at the thread's
/// end, which crashes the program when the library has been unloaded meanwhile.
pub(crate) fn report_panics() {
    PANIC_HOOK.call_once(|| panic::set_hook(Box::new(|panic| tell(panic))));
}
