//! EDGE to NVML, the driver's management library. The only unsafe code.
