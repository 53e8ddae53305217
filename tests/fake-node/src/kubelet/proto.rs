//! The services that the kubelet calls, generated from `proto/`.
#![allow(missing_docs, unreachable_pub, unused_qualifications, clippy::all, clippy::pedantic)]

/// The registrar.
pub mod registration {
    tonic::include_proto!("pluginregistration");
}

/// DRA, v1.
pub mod v1 {
    tonic::include_proto!("k8s.io.kubelet.pkg.apis.dra.v1");
}

/// DRA, v1beta1.
pub mod v1beta1 {
    tonic::include_proto!("k8s.io.kubelet.pkg.apis.dra.v1beta1");
}

/// Device health, v1.
pub mod health_v1 {
    tonic::include_proto!("v1");
}

/// Device health, v1alpha1.
pub mod health_v1alpha1 {
    tonic::include_proto!("v1alpha1");
}
