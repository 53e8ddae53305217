//! What changes all the time on a real machine and is constant here: an idle, cool GPU.

use std::ffi::{c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::{
    nvmlEnableState_t, nvmlPstates_t, nvmlTemperature_t, nvmlTemperatureSensors_t, nvmlTemperatureThresholds_t,
    nvmlUtilization_t,
};

use crate::call::nvml;
use crate::code::{Code, require};
use crate::out::{put, versioned};

/// Degrees Celsius of an idle GPU.
const TEMPERATURE: u8 = 32;

/// Degrees Celsius at which the GPU shuts down, slows down, throttles for its memory, and throttles for itself.
const THRESHOLDS: [c_uint; 4] = [92, 89, 95, 87];

/// An idle board draws about a tenth of its limit.
const IDLE_SHARE: c_uint = 10;

/// Milliwatts in a watt.
const MILLI: c_uint = 1000;

/// The lowest limit that boards accept, in watts.
const LOWEST_LIMIT: c_uint = 200;

nvml! {
    fn nvmlDeviceGetTemperature(gpu: Device, sensor: nvmlTemperatureSensors_t, temperature: *mut c_uint) {
        let _ = gpu;
        if sensor != 0 {
            return Err(Code::INVALID_ARGUMENT);
        }
        put(temperature, c_uint::from(TEMPERATURE))
    }

    fn nvmlDeviceGetTemperatureV(gpu: Device, temperature: *mut nvmlTemperature_t) {
        let _ = gpu;
        let temperature = versioned(temperature, 1)?;
        if (*temperature).sensorType != 0 {
            return Err(Code::INVALID_ARGUMENT);
        }
        (*temperature).temperature = TEMPERATURE.into();
        Ok(())
    }

    fn nvmlDeviceGetTemperatureThreshold(gpu: Device, kind: nvmlTemperatureThresholds_t, temperature: *mut c_uint) {
        let _ = gpu;
        put(temperature, *THRESHOLDS.get(kind as usize).ok_or(Code::NOT_SUPPORTED)?)
    }

    fn nvmlDeviceGetPowerManagementMode(gpu: Device, mode: *mut nvmlEnableState_t) {
        require(gpu.board.power_limit_watts > 0)?;
        put(mode, 1)
    }

    fn nvmlDeviceGetPowerUsage(gpu: Device, milliwatts: *mut c_uint) {
        require(gpu.board.power_limit_watts > 0)?;
        put(milliwatts, gpu.board.power_limit_watts * MILLI / IDLE_SHARE)
    }

    fn nvmlDeviceGetPowerManagementLimit, nvmlDeviceGetPowerManagementDefaultLimit,
       nvmlDeviceGetEnforcedPowerLimit(gpu: Device, milliwatts: *mut c_uint) {
        require(gpu.board.power_limit_watts > 0)?;
        put(milliwatts, gpu.board.power_limit_watts * MILLI)
    }

    fn nvmlDeviceGetPowerManagementLimitConstraints(gpu: Device, lowest: *mut c_uint, highest: *mut c_uint) {
        require(gpu.board.power_limit_watts > 0)?;
        put(lowest, gpu.board.power_limit_watts.min(LOWEST_LIMIT) * MILLI)?;
        put(highest, gpu.board.power_limit_watts * MILLI)
    }

    fn nvmlDeviceGetTotalEnergyConsumption(gpu: Device, millijoules: *mut c_ulonglong) {
        let _ = gpu;
        put(millijoules, 0)
    }

    fn nvmlDeviceGetUtilizationRates(gpu: Device, utilization: *mut nvmlUtilization_t) {
        let _ = gpu;
        put(utilization, nvmlUtilization_t { gpu: 0, memory: 0 })
    }

    fn nvmlDeviceGetPerformanceState, nvmlDeviceGetPowerState(gpu: Device, state: *mut nvmlPstates_t) {
        let _ = gpu;
        put(state, 0)
    }
}
