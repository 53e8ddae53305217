#!/usr/bin/env python3
"""Reads the mock NVML with NVIDIA's own Python binding and compares every answer with the topology file.

    hack/checks/nvml_python.py path/to/libmock_nvml.so tests/topology/files

The binding (nvidia-ml-py, requirements.txt) declares structs, constants and signatures independently of the mock. Each
topology is read by a process of its own, which finds the library by its SONAME as programs on a real node do. After
the facts come an event, injected errors, a struct with a wrong version word, and MIG: every profile is compared with the
table of the board, and an instance of it is created, found every way, and destroyed.

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

MIG_TABLES = pathlib.Path(__file__).resolve().parent.parent.parent / "tests/topology/mig"
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
        mig(compare, node, topology)
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


def mig(compare, node, topology):
    """The profiles of the first GPU that has any, with MIG mode off and on."""
    boards = [topology["boards"][gpu["board"]] for gpu in topology["gpus"]]
    index = next((index for index, board in enumerate(boards) if board.get("mig")), None)
    if index is None:
        gpu = nv.nvmlDeviceGetHandleByIndex(0)
        compare.fails("MIG mode", nv.NVML_ERROR_NOT_SUPPORTED, nv.nvmlDeviceGetMigMode, gpu)
        return
    table = json.loads((MIG_TABLES / f"{boards[index]['mig']}.json").read_text())["profiles"]
    gpu = nv.nvmlDeviceGetHandleByIndex(index)
    profile_info, missing = nv.nvmlDeviceGetGpuInstanceProfileInfo, nv.NVML_ERROR_NOT_SUPPORTED
    compare.fails("profile name, MIG off", missing, profile_info, gpu, 0)
    for at in range(nv.NVML_GPU_INSTANCE_PROFILE_COUNT):
        profile = next((profile for profile in table if profile["index"] == at), None)
        if profile:
            starts = [(start, profile["size"]) for start in profile["starts"]]
            compare.same(f"MIG profile {at}", described(profile_info(gpu, at, 1)), numbers(profile))
            compare.same(f"MIG placements {at}", placements(gpu, profile["id"]), starts)
        else:
            compare.fails(f"MIG profile {at}", missing, profile_info, gpu, at, 1)
    last = nv.NVML_GPU_INSTANCE_PROFILE_COUNT
    compare.fails("MIG profiles' end", nv.NVML_ERROR_INVALID_ARGUMENT, profile_info, gpu, last, 1)
    with state(node, {"gpus": {str(index): {"mig_enabled": True}}}):
        uuids = {instance(compare, gpu, profile) for profile in table}
    compare.same("UUIDs of MIG devices", len(uuids), len(table))


def instance(compare, gpu, profile):
    """Creates an instance of a profile, and a MIG device that fills it."""
    label = f"MIG {profile['name']}"
    same = lambda what, answer, expected: compare.same(f"{label} {what}", answer, expected)
    named = nv.nvmlDeviceGetGpuInstanceProfileInfo(gpu, profile["index"])
    same("profile", (described(named), named.name), (numbers(profile), label))
    same("profile by id", nv.nvmlDeviceGetGpuInstanceProfileInfoById(gpu, profile["id"]).name, label)
    room = nv.nvmlDeviceGetGpuInstanceRemainingCapacity(gpu, profile["id"])
    same("capacity", room, profile["instances"])

    created = [nv.nvmlDeviceCreateGpuInstance(gpu, profile["id"]) for _ in range(room)]
    refused = nv.NVML_ERROR_INSUFFICIENT_RESOURCES
    compare.fails(f"{label} one too many", refused, nv.nvmlDeviceCreateGpuInstance, gpu, profile["id"])
    infos = [nv.nvmlGpuInstanceGetInfo(one) for one in created]
    starts = sorted(info.placement.start for info in infos)
    same("starts", len(set(starts)), room)
    listed, count = (nv.c_nvmlGpuInstance_t * room)(), ctypes.c_uint()
    nv.nvmlDeviceGetGpuInstances(gpu, profile["id"], listed, ctypes.byref(count))
    same("list", sorted(map(number, listed[: count.value])), sorted(map(number, created)))
    for one in created[1:]:
        nv.nvmlGpuInstanceDestroy(one)

    parent, info = created[0], infos[0]
    same("by id", number(nv.nvmlDeviceGetGpuInstanceById(gpu, info.id)), number(parent))
    filling = next(found for found in compute_profiles(parent) if found.sliceCount == profile["slices"])
    same("compute profile", (filling.name, filling.multiprocessorCount), (label, profile["multiprocessors"]))
    child = nv.nvmlGpuInstanceCreateComputeInstance(parent, filling.id)
    inside = nv.nvmlComputeInstanceGetInfo(child)
    same("compute instance", (inside.id, inside.profileId, number(inside.gpuInstance)), (0, filling.id, number(parent)))
    compare.fails(f"{label} in use", nv.NVML_ERROR_IN_USE, nv.nvmlGpuInstanceDestroy, parent)

    device = nv.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0)
    uuid = nv.nvmlDeviceGetUUID(device)
    same("name", nv.nvmlDeviceGetName(device), f"{nv.nvmlDeviceGetName(gpu)} {label}")
    same("found by uuid", number(nv.nvmlDeviceGetHandleByUUID(uuid)), number(device))
    same("is a MIG device", nv.nvmlDeviceIsMigDeviceHandle(device).value, 1)
    parent_uuid = nv.nvmlDeviceGetUUID(nv.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device))
    same("belongs to", parent_uuid, nv.nvmlDeviceGetUUID(gpu))
    ids = (nv.nvmlDeviceGetGpuInstanceId(device), nv.nvmlDeviceGetComputeInstanceId(device))
    same("ids", ids, (info.id, 0))
    attributes = nv.nvmlDeviceGetAttributes(device)
    size = (attributes.memorySizeMB, attributes.gpuInstanceSliceCount, attributes.computeInstanceSliceCount)
    same("attributes", size, (profile["memory_mib"], profile["slices"], profile["slices"]))
    compare.fails(f"{label} second device", nv.NVML_ERROR_NOT_FOUND, nv.nvmlDeviceGetMigDeviceHandleByIndex, gpu, 1)

    nv.nvmlComputeInstanceDestroy(child)
    nv.nvmlGpuInstanceDestroy(parent)
    for what, function, handle in [
        ("device", nv.nvmlDeviceGetUUID, device),
        ("compute instance", nv.nvmlComputeInstanceGetInfo, child),
        ("GPU instance", nv.nvmlGpuInstanceGetInfo, parent),
    ]:
        compare.fails(f"{label} {what} that is gone", nv.NVML_ERROR_INVALID_ARGUMENT, function, handle)
    return uuid


def compute_profiles(parent):
    for at in range(nv.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        with contextlib.suppress(nv.NVMLError_NotSupported):
            yield nv.nvmlGpuInstanceGetComputeInstanceProfileInfo(parent, at, 0)


def placements(gpu, profile_id):
    count = ctypes.c_uint()
    nv.nvmlDeviceGetGpuInstancePossiblePlacements(gpu, profile_id, None, ctypes.byref(count))
    found = (nv.c_nvmlGpuInstancePlacement_t * count.value)()
    nv.nvmlDeviceGetGpuInstancePossiblePlacements(gpu, profile_id, found, ctypes.byref(count))
    return [(placement.start, placement.size) for placement in found]


def described(info):
    """The numbers of a profile as the binding has them, and below as the table has them."""
    engines = (info.copyEngineCount, info.decoderCount, info.encoderCount, info.jpegCount, info.ofaCount)
    return info.id, info.sliceCount, info.instanceCount, info.multiprocessorCount, engines, info.memorySizeMB


def numbers(profile):
    names = ("copy_engines", "decoders", "encoders", "jpeg_engines", "ofa_engines")
    engines = tuple(profile.get(name, 0) for name in names)
    return profile["id"], profile["slices"], profile["instances"], profile["multiprocessors"], engines, profile["memory_mib"]


def number(handle):
    return ctypes.cast(handle, ctypes.c_void_p).value


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
