#!/usr/bin/env python3
"""Registers a DRA plugin the way a kubelet does, with gRPC's C core.

    grpc_kubelet.py REGISTRAR_SOCKET [--driver NAME]

The C core is not the HTTP/2 implementation that the plugin is built and tested with, and like the kubelet's plugin
manager it sends the socket path as `:authority`, which most servers in Rust refuse. On one channel: GetInfo, then
NotifyRegistrationStatus; once as the C core does by itself, and once each with the authority of grpc-go (the path,
percent-encoded) and with the bare path. Then, at the endpoint that GetInfo names, NodePrepareResources and
NodeUnprepareResources without claims, v1 and v1beta1, and the first message of both health streams.

Messages are encoded by hand from the kubelet's contract, not from the plugin's proto files: two independent readings
have to agree. Exits 1 at the first difference.
"""

import argparse
import os
import sys
import urllib.parse

import grpc

# Deadlines of the kubelet, in seconds.
GET_INFO_DEADLINE = 1
NOTIFY_DEADLINE = 5
DRA_DEADLINE = 45

# Health streams have none; this is how long the first message may take.
HEALTH_PATIENCE = 10

SUPPORTED_VERSIONS = ["v1.DRAPlugin", "v1beta1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"]

VARINT, LENGTH_DELIMITED = 0, 2


class Difference(Exception):
    """The plugin did something else than a kubelet expects."""


def varint(number):
    """A protobuf varint."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def read_varint(message, at):
    """The varint at `at`, and where it ends."""
    number = shift = 0
    while True:
        byte = message[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number, at


def fields(message):
    """A message as {field number: [values]}: integers, or bytes."""
    found, at = {}, 0
    while at < len(message):
        tag, at = read_varint(message, at)
        number, wire_type = tag >> 3, tag & 7
        value, at = read_varint(message, at)
        if wire_type == LENGTH_DELIMITED:
            length, value = value, message[at : at + value]
            if len(value) != length:
                raise Difference(f"field {number} ends after the message does")
            at += length
        elif wire_type != VARINT:
            raise Difference(f"field {number} has wire type {wire_type}, which no message here uses")
        found.setdefault(number, []).append(value)
    return found


def text(message, number):
    """A string field; empty if it is not there."""
    return fields(message).get(number, [b""])[-1].decode()


def call(channel, method, request, deadline):
    """A unary call with and of bytes."""
    try:
        return channel.unary_unary(method)(request, timeout=deadline)
    except grpc.RpcError as error:
        raise Difference(f"{method}: {error.code().name}: {error.details()}") from None


def first_message(channel, method):
    """The first message of a stream, which is cancelled then."""
    stream = channel.unary_stream(method)(b"", timeout=HEALTH_PATIENCE)
    try:
        return next(stream)
    except StopIteration:
        raise Difference(f"{method}: the stream ended without a message") from None
    except grpc.RpcError as error:
        raise Difference(f"{method}: {error.code().name}: {error.details()}") from None
    finally:
        stream.cancel()


def expect(what, found, wanted):
    """Both are the same, and a line says so."""
    if found != wanted:
        raise Difference(f"{what} is {found!r}, a kubelet wants {wanted!r}")
    print(f"  {what}: {found}")


def register(socket, driver, authority):
    """GetInfo and NotifyRegistrationStatus with this authority, None for the C core's own; answers the endpoint."""
    # message InfoRequest {}
    # message PluginInfo { string type = 1; string name = 2; string endpoint = 3; repeated string supported_versions = 4; }
    # message RegistrationStatus { bool plugin_registered = 1; string error = 2; }
    # message RegistrationStatusResponse {}
    service = "/pluginregistration.Registration"
    options = [] if authority is None else [("grpc.default_authority", authority)]
    # Channels with other options do not share a connection.
    with grpc.insecure_channel(f"unix:{socket}", options) as channel:
        print(f"{service}/GetInfo, authority {authority or 'as it comes'}")
        info = call(channel, f"{service}/GetInfo", b"", GET_INFO_DEADLINE)
        endpoint = text(info, 3)
        expect("type", text(info, 1), "DRAPlugin")
        if driver is None:
            print(f"  name: {text(info, 2)}")
        else:
            expect("name", text(info, 2), driver)
        expect("supported_versions", [version.decode() for version in fields(info).get(4, [])], SUPPORTED_VERSIONS)
        print(f"  endpoint: {endpoint}")
        if not os.path.isabs(endpoint) or len(os.fsencode(endpoint)) >= 108:
            raise Difference(f"the endpoint {endpoint!r} is not an absolute path of less than 108 bytes")

        # On the same channel: the authority is an index into the connection's table now.
        print(f"{service}/NotifyRegistrationStatus")
        registered = varint(1 << 3 | VARINT) + varint(1)
        answer = call(channel, f"{service}/NotifyRegistrationStatus", registered, NOTIFY_DEADLINE)
        expect("answer", fields(answer), {})
    return endpoint


def use(endpoint):
    """Calls that do nothing, and the health streams."""
    # message NodePrepareResourcesRequest { repeated Claim claims = 1; }
    # message NodePrepareResourcesResponse { map<string, NodePrepareResourceResponse> claims = 1; }
    # message NodeWatchResourcesResponse { repeated DeviceHealth devices = 1; }
    # message DeviceHealth { DeviceIdentifier device = 1; HealthStatus health = 2; ... }
    # message DeviceIdentifier { string pool_name = 1; string device_name = 2; }
    with grpc.insecure_channel(f"unix:{endpoint}") as channel:
        for version in ["v1", "v1beta1"]:
            for method in ["NodePrepareResources", "NodeUnprepareResources"]:
                path = f"/k8s.io.kubelet.pkg.apis.dra.{version}.DRAPlugin/{method}"
                print(path)
                expect("answer to no claims", fields(call(channel, path, b"", DRA_DEADLINE)), {})
        for version in ["v1", "v1alpha1"]:
            path = f"/{version}.DRAResourceHealth/NodeWatchResources"
            print(path)
            devices = fields(first_message(channel, path)).get(1, [])
            for device in devices:
                identifier = fields(device).get(1, [b""])[-1]
                if not text(identifier, 1) or not text(identifier, 2):
                    raise Difference(f"a device without pool or name: {device!r}")
            print(f"  devices: {len(devices)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("registrar", help="path of the registrar socket, <kubelet root>/plugins_registry/…-reg.sock")
    parser.add_argument("--driver", help="the driver name that the plugin must give")
    args = parser.parse_args()
    print(f"gRPC C core {grpc.__version__}")
    socket = os.path.abspath(args.registrar)
    try:
        for authority in [None, urllib.parse.quote(socket, safe=""), socket]:
            endpoint = register(socket, args.driver, authority)
        use(endpoint)
    except (Difference, UnicodeDecodeError, IndexError) as difference:
        print(f"FAILED: {difference or 'a message ends too early'}", file=sys.stderr)
        return 1
    print("ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
