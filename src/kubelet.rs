//! EDGE to the kubelet: gRPC over unix sockets.
