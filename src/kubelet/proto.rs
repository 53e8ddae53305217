//! The kubelet's services as generated from `proto/`.

#![allow(missing_docs, unreachable_pub, unused_qualifications, clippy::pedantic, reason = "generated")]

pub(super) mod registration {
    tonic::include_proto!("pluginregistration");
}

pub(super) mod dra_v1 {
    tonic::include_proto!("k8s.io.kubelet.pkg.apis.dra.v1");
}

pub(super) mod dra_v1beta1 {
    tonic::include_proto!("k8s.io.kubelet.pkg.apis.dra.v1beta1");
}

pub(super) mod health_v1 {
    tonic::include_proto!("v1");
}

pub(super) mod health_v1alpha1 {
    tonic::include_proto!("v1alpha1");
}
