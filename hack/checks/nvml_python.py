#!/usr/bin/env python3
"""Reads the mock NVML with NVIDIA's own Python binding and compares every answer with the topology file.

    hack/checks/nvml_python.py path/to/libmock_nvml.so tests/topology/files

The binding (nvidia-ml-py, requirements.txt) declares structs, constants and signatures independently of the mock. Each
topology is read by a process of its own, which finds the library by its SONAME as programs on a real node do. After
the facts come an event, injected errors, and a struct with a wrong version word.

Prints one line a topology; exits non-zero after listing what differed.
"""

import contextlib
import ctypes
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import pynvml as nv

MIB = 1 << 20
MAX_LINKS = 36
NOT_ON_THIS_BUS = "FFFFFFFF:FF:FF.0"
# NVLink generations as the binding names the versions.
NVLINK_VERSIONS = {
    1: nv.NVML_NVLINK_VERSION_1_0,
    2: nv.NVML_NVLINK_VERSION_2_0,
    3: nv.NVML_NVLINK_VERSION_3_0,
    4: nv.NVML_NVLINK_VERSION_4_0,
    5: nv.NVML_NVLINK_VERSION_5_0,
}
ADDRESSING_MODES = {
    "none": nv.NVML_DEVICE_ADDRESSING_MODE_NONE,
    "hmm": nv.NVML_DEVICE_ADDRESSING_MODE_HMM,
    "ats": nv.NVML_DEVICE_ADDRESSING_MODE_ATS,
}


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "--read":
        return read(pathlib.Path(sys.argv[2]))
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    library, topologies = pathlib.Path(sys.argv[1]), sorted(pathlib.Path(sys.argv[2]).glob("*.json"))
    if not topologies:
        sys.exit(f"no topologies in {sys.argv[2]}")
    failed = [topology.name for topology in topologies if not check(library, topology)]
    if failed:
        sys.exit(f"differs: {', '.join(failed)}")


def check(library, topology):
    """Sets up a machine and lets a process of its own read it."""
    with tempfile.TemporaryDirectory() as temp:
        root = pathlib.Path(temp)
        node = root / "mock-nvml"
        node.mkdir()
        shutil.copy(library, root / "libnvidia-ml.so.1")
        shutil.copy(topology, node / "topology.json")
        (node / "state.json").write_text("{}")
        (node / "events.jsonl").touch()
        environment = {**os.environ, "LD_LIBRARY_PATH": temp}
        environment.pop("MOCK_NVML_DIR", None)
        command = [sys.executable, __file__, "--read", str(node)]
        result = subprocess.run(command, env=environment, capture_output=True, text=True)
    if result.returncode == 0:
        print(f"{topology.name}: {result.stdout.strip()}")
        return True
    print(f"{topology.name}: DIFFERS\n{result.stdout}{result.stderr}")
    return False


class Comparison:
    """Collects what differs, and how much was compared."""

    def __init__(self):
        self.count = 0
        self.differences = []

    def same(self, what, answer, expected):
        self.count += 1
        if answer != expected:
            self.differences.append(f"  {what}: the binding reads {answer!r}, the file says {expected!r}")

    def call(self, what, expected, function, *arguments):
        """Compares a call; where None is expected, the call must not be supported."""
        try:
            answer = function(*arguments)
        except nv.NVMLError_NotSupported:
            answer = None
        self.same(what, answer, expected)

    def fails(self, what, error, function, *arguments):
        code = ctypes.c_uint(0)
        try:
            function(*arguments)
        except nv.NVMLError as raised:
            code = ctypes.c_uint(raised.value)
        self.same(what, code.value, error)


def read(node):
    topology = json.loads((node / "topology.json").read_text())
    compare = Comparison()
    nv.nvmlInit()
    system(compare, topology)
    for index, gpu in enumerate(topology["gpus"]):
        device(compare, topology, index, gpu)
    if topology["gpus"]:
        events(compare, node)
        errors(compare, node)
    nv.nvmlShutdown()
    print("\n".join(compare.differences) or f"{len(topology['gpus'])} GPUs, {compare.count} answers as in the file")
    return 1 if compare.differences else 0


def system(compare, topology):
    versions = topology["system"]
    compare.same("driver version", nv.nvmlSystemGetDriverVersion(), versions["driver_version"])
    compare.same("NVML version", nv.nvmlSystemGetNVMLVersion(), versions["nvml_version"])
    compare.same("CUDA version", nv.nvmlSystemGetCudaDriverVersion_v2(), versions["cuda_version"])
    compare.same("GPU count", nv.nvmlDeviceGetCount(), len(topology["gpus"]))


def device(compare, topology, index, gpu):
    board = topology["boards"][gpu["board"]]
    handle = nv.nvmlDeviceGetHandleByIndex(index)
    bus = gpu["bus_id"].upper()
    label = f"gpu {index}"
    same = lambda what, answer, expected: compare.same(f"{label} {what}", answer, expected)
    call = lambda what, expected, function: compare.call(f"{label} {what}", expected, function, handle)

    call("name", board["product_name"], nv.nvmlDeviceGetName)
    call("uuid", gpu["uuid"], nv.nvmlDeviceGetUUID)
    call("serial", gpu.get("serial"), nv.nvmlDeviceGetSerial)
    call("minor", gpu["minor"], nv.nvmlDeviceGetMinorNumber)
    call("index", index, nv.nvmlDeviceGetIndex)
    call("module", gpu.get("module_id") or 0, nv.nvmlDeviceGetModuleId)
    call("brand", board["brand"], nv.nvmlDeviceGetBrand)
    call("architecture", board["architecture"], nv.nvmlDeviceGetArchitecture)
    call("compute capability", tuple(board["cuda_compute_capability"]), nv.nvmlDeviceGetCudaComputeCapability)
    mode = board.get("addressing_mode")
    call("addressing mode", ADDRESSING_MODES.get(mode), nv.nvmlDeviceGetAddressingMode)
    mig = [int(gpu.get("mig_enabled", False))] * 2 if board.get("mig_capable") else None
    call("MIG mode", mig, nv.nvmlDeviceGetMigMode)
    call("virtualization", gpu.get("virtualization_mode", 0), nv.nvmlDeviceGetVirtualizationMode)
    call("VBIOS", board.get("vbios_version") or None, nv.nvmlDeviceGetVbiosVersion)
    call("ECC mode", [1, 1] if board.get("ecc") else None, nv.nvmlDeviceGetEccMode)

    memory = board["memory_mib"] * MIB
    reserved = board.get("memory_reserved_mib", 0) * MIB
    same("memory", nv.nvmlDeviceGetMemoryInfo(handle).total, memory)
    second = nv.nvmlDeviceGetMemoryInfo(handle, nv.nvmlMemory_v2)
    same("memory, second version", (second.total, second.reserved, second.used), (memory, reserved, 0))

    pci = nv.nvmlDeviceGetPciInfo(handle)
    domain, rest = bus.split(":", 1)
    same("bus id", pci.busId, f"{domain:>08}:{rest}")
    same("legacy bus id", pci.busIdLegacy, bus)
    numbers = tuple(int(part, 16) for part in bus.split(".")[0].split(":"))
    same("bus numbers", (pci.domain, pci.bus, pci.device), numbers)
    ids = (int(board["pci_device_id"], 16), int(board["pci_subsystem_id"], 16))
    same("PCI ids", (pci.pciDeviceId, pci.pciSubSystemId), ids)

    for what, found in {
        "uuid": nv.nvmlDeviceGetHandleByUUID(gpu["uuid"]),
        "bus id": nv.nvmlDeviceGetHandleByPciBusId(gpu["bus_id"]),
    }.items():
        same(f"found by {what}", nv.nvmlDeviceGetMinorNumber(found), gpu["minor"])
    if gpu["numa_node"] >= 0:
        nodes = nv.nvmlDeviceGetMemoryAffinity(handle, 1, nv.NVML_AFFINITY_SCOPE_NODE)
        same("NUMA node", nodes[0], 1 << gpu["numa_node"])
    links(compare, topology, label, handle, gpu)
    fabric(compare, label, handle, gpu)


def links(compare, topology, label, handle, gpu):
    ends = [(group["to"], group.get("active", True)) for group in gpu.get("nvlinks", []) for _ in range(group["count"])]
    same = lambda what, answer, expected: compare.same(f"{label} {what}", answer, expected)
    for link, (to, active) in enumerate(ends):
        same(f"link {link} state", nv.nvmlDeviceGetNvLinkState(handle, link), int(active))
        version = NVLINK_VERSIONS[gpu["nvlink_version"]]
        same(f"link {link} version", nv.nvmlDeviceGetNvLinkVersion(handle, link), version)
        kind, bus = far_end(topology, to)
        same(f"link {link} leads to", nv.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link), kind)
        same(f"link {link} leads to", nv.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId, bus)
    fields = nv.nvmlDeviceGetFieldValues(handle, [nv.NVML_FI_DEV_NVLINK_LINK_COUNT, nv.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
    if ends:
        same("link count", (fields[0].nvmlReturn, fields[0].value.uiVal), (0, len(ends)))
    else:
        same("link count", fields[0].nvmlReturn, nv.NVML_ERROR_NOT_SUPPORTED)
    same("recovery action", (fields[1].nvmlReturn, fields[1].value.uiVal), (0, nv.NVML_GPU_RECOVERY_ACTION_NONE))
    state = nv.nvmlDeviceGetNvLinkState
    compare.fails(f"{label} first missing link", nv.NVML_ERROR_NOT_SUPPORTED, state, handle, len(ends))
    compare.fails(f"{label} impossible link", nv.NVML_ERROR_INVALID_ARGUMENT, state, handle, MAX_LINKS)


def far_end(topology, to):
    """The type and bus id of what a link leads to."""
    if to == "fabric":
        return nv.NVML_NVLINK_DEVICE_TYPE_SWITCH, NOT_ON_THIS_BUS
    if "gpu" in to:
        kind, address = nv.NVML_NVLINK_DEVICE_TYPE_GPU, topology["gpus"][to["gpu"]]["bus_id"]
    else:
        kind, address = nv.NVML_NVLINK_DEVICE_TYPE_SWITCH, to["switch"]
    domain, rest = address.upper().split(":", 1)
    return kind, f"{domain:>08}:{rest}"


def fabric(compare, label, handle, gpu):
    expected = gpu.get("fabric")
    if expected:
        uuid = bytes.fromhex(expected["cluster_uuid"].replace("-", ""))
        expected = (uuid, expected["status"], expected["clique_id"], expected["state"])
    for function, info in [
        (nv.nvmlDeviceGetGpuFabricInfo, nv.c_nvmlGpuFabricInfo_t()),
        (nv.nvmlDeviceGetGpuFabricInfoV, nv.c_nvmlGpuFabricInfo_v2_t()),
        (nv.nvmlDeviceGetGpuFabricInfoV, nv.c_nvmlGpuFabricInfo_v3_t()),
    ]:
        def answer():
            function(handle, ctypes.byref(info))
            return bytes(info.clusterUuid), info.status, info.cliqueId, info.state

        compare.call(f"{label} fabric as {type(info).__name__}", expected, answer)


def events(compare, node):
    """An XID of an instance, and nothing after it."""
    handle = nv.nvmlDeviceGetHandleByIndex(0)
    events = nv.nvmlEventSetCreate()
    nv.nvmlDeviceRegisterEvents(handle, nv.nvmlEventTypeXidCriticalError, events)
    sent = {"gpu": 0, "event_type": 8, "data": 94, "gpu_instance": 7, "compute_instance": 0}
    with (node / "events.jsonl").open("a") as file:
        file.write(json.dumps(sent) + "\n")
    data = nv.nvmlEventSetWait_v2(events, 10_000)
    answer = (data.eventType, data.eventData, data.gpuInstanceId, data.computeInstanceId)
    compare.same("event", answer, (8, 94, 7, 0))
    compare.same("event's GPU", nv.nvmlDeviceGetUUID(data.device), nv.nvmlDeviceGetUUID(handle))
    compare.fails("second event", nv.NVML_ERROR_TIMEOUT, nv.nvmlEventSetWait_v2, events, 0)
    nv.nvmlEventSetFree(events)


def errors(compare, node):
    handle = nv.nvmlDeviceGetHandleByIndex(0)
    for code in (nv.NVML_ERROR_GPU_IS_LOST, nv.NVML_ERROR_UNKNOWN):
        with state(node, {"faults": [{"call": "nvmlDeviceGetName", "code": code}]}):
            compare.fails(f"injected {code}", code, nv.nvmlDeviceGetName, handle)
    with state(node, {"gpus": {"0": {"lost": True}}}):
        compare.fails("lost GPU", nv.NVML_ERROR_GPU_IS_LOST, nv.nvmlDeviceGetUUID, handle)
    wrong = nv.nvmlMemory_v2 + 1
    mismatch = nv.NVML_ERROR_ARGUMENT_VERSION_MISMATCH
    compare.fails("wrong version word", mismatch, nv.nvmlDeviceGetMemoryInfo, handle, wrong)


@contextlib.contextmanager
def state(node, content):
    """Replaces the state file for a while, by rename as all writers do."""

    def write(value):
        new = node / "state.new"
        new.write_text(json.dumps(value))
        new.rename(node / "state.json")

    write(content)
    yield
    write({})


if __name__ == "__main__":
    sys.exit(main())
