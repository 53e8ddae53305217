//! Answers through the caller's pointers. All functions rely on the contract stated in [`crate::call`].

use std::ffi::{CStr, c_char, c_uint};

use crate::code::{Answer, Code};

/// Stores a value; a null pointer is INVALID_ARGUMENT.
///
/// # Safety
/// `out` is null or valid for writing a `T`.
pub(crate) unsafe fn put<T>(out: *mut T, value: T) -> Answer {
    if out.is_null() {
        return Err(Code::INVALID_ARGUMENT);
    }
    // SAFETY: not null, and the caller keeps the contract.
    unsafe { out.write(value) };
    Ok(())
}

/// A struct to fill in field by field, all zero before. Its padding stays zero, as some readers expect who declare a
/// wider field than the header does.
///
/// # Safety
/// `out` is null or valid for writing a `T`, for which zero is a value.
pub(crate) unsafe fn blank<'a, T>(out: *mut T) -> Answer<&'a mut T> {
    if out.is_null() {
        return Err(Code::INVALID_ARGUMENT);
    }
    // SAFETY: not null, and the caller keeps the contract.
    unsafe {
        out.write_bytes(0, 1);
        Ok(&mut *out)
    }
}

/// Stores a string and its terminator; a buffer that is too small is left alone.
///
/// # Safety
/// `out` is null or valid for writing `capacity` bytes.
pub(crate) unsafe fn text(out: *mut c_char, capacity: c_uint, value: &str) -> Answer {
    if out.is_null() {
        return Err(Code::INVALID_ARGUMENT);
    }
    if value.len() >= capacity as usize {
        return Err(Code::INSUFFICIENT_SIZE);
    }
    // SAFETY: not null, and the terminator still fits into the capacity.
    unsafe {
        out.copy_from_nonoverlapping(value.as_ptr().cast(), value.len());
        out.add(value.len()).write(0);
    }
    Ok(())
}

/// Stores a list the way topology queries do: a count of zero asks for the number, another one for so many items.
///
/// # Safety
/// `count` is null or valid; `items` is null or valid for writing `*count` items.
pub(crate) unsafe fn list<T: Copy>(count: *mut c_uint, items: *mut T, values: &[T]) -> Answer {
    // SAFETY: the caller keeps the contract.
    let Some(count) = (unsafe { count.as_mut() }) else {
        return Err(Code::INVALID_ARGUMENT);
    };
    let room = *count as usize;
    let total = c_uint::try_from(values.len()).map_err(|_| Code::UNKNOWN)?;
    if room == 0 {
        *count = total;
        return Ok(());
    }
    if items.is_null() {
        return Err(Code::INVALID_ARGUMENT);
    }
    let filled = room.min(values.len());
    // SAFETY: `items` has room for `room` items, and no more than that are written.
    unsafe { items.copy_from_nonoverlapping(values.as_ptr(), filled) };
    *count = (*count).min(total);
    Ok(())
}

/// Stores a list the way MIG queries do: all of it, into an array that has room for as many as there can ever be, and its
/// length.
///
/// # Safety
/// `count` is null or valid for writing; `items` is null or valid for writing all values.
pub(crate) unsafe fn all<T: Copy>(count: *mut c_uint, items: *mut T, values: &[T]) -> Answer {
    if items.is_null() {
        return Err(Code::INVALID_ARGUMENT);
    }
    // SAFETY: the caller keeps the contract.
    unsafe {
        put(count, c_uint::try_from(values.len()).map_err(|_| Code::UNKNOWN)?)?;
        items.copy_from_nonoverlapping(values.as_ptr(), values.len());
    }
    Ok(())
}

/// The version word of a versioned struct: its size, and the version in the top byte.
pub(crate) const fn version_word<T>(version: u32) -> u32 {
    #[expect(clippy::cast_possible_truncation, reason = "structs are smaller than 16 MiB by definition of the word")]
    let size = size_of::<T>() as u32;
    size | version << 24
}

/// A versioned struct whose caller set the expected word.
///
/// # Safety
/// `info` is null or points to a `T` or to another version of it, which begins with a version word.
pub(crate) unsafe fn versioned<T>(info: *mut T, version: u32) -> Answer<*mut T> {
    // SAFETY: the caller keeps the contract: whatever version it is, it begins with the word.
    if unsafe { word(info.cast()) }? == version_word::<T>(version) {
        Ok(info)
    } else {
        Err(Code::ARGUMENT_VERSION_MISMATCH)
    }
}

/// The version word of a struct of unknown version.
///
/// # Safety
/// `info` is null or points to a versioned struct.
pub(crate) unsafe fn word(info: *const u32) -> Answer<u32> {
    // SAFETY: the caller keeps the contract.
    if info.is_null() { Err(Code::INVALID_ARGUMENT) } else { Ok(unsafe { info.read() }) }
}

/// A string argument; null or not UTF-8 is INVALID_ARGUMENT.
///
/// # Safety
/// `text` is null or a terminated string that outlives the use of the result.
pub(crate) unsafe fn argument<'a>(text: *const c_char) -> Answer<&'a str> {
    if text.is_null() {
        return Err(Code::INVALID_ARGUMENT);
    }
    // SAFETY: not null, and the caller keeps the contract.
    unsafe { CStr::from_ptr(text) }.to_str().map_err(|_| Code::INVALID_ARGUMENT)
}

/// A string as the fixed character array of a struct, cut to fit.
pub(crate) fn chars<const N: usize>(value: &str) -> [c_char; N] {
    let mut array = [0; N];
    for (slot, byte) in array.iter_mut().take(N - 1).zip(value.bytes()) {
        *slot = byte.cast_signed();
    }
    array
}
