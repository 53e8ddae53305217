//! What differs between the kubelets of different releases.

use std::fmt;

use tonic::codegen::http::uri::PathAndQuery;

use super::wire::Authority;
use crate::release::Release;

/// The DRA service that the kubelet calls on a plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Service {
    /// `v1.DRAPlugin`.
    V1,
    /// `v1beta1.DRAPlugin`.
    V1Beta1,
    /// `v1alpha3.NodeService`, which kubelets up to 1.33 call where a plugin lists nothing that they know.
    Alpha4,
}

/// The health service that the kubelet watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HealthService {
    V1,
    V1Alpha1,
}

/// What happens to a driver whose last plugin went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Instances {
    /// One for each driver: the newest replaces the others, and if any of them goes, the driver is gone.
    Replaced,
    /// Several, of which the one added last is used; a driver is there while a registrar socket is.
    LastAdded,
    /// Several, of which the connected one added last is used; a driver is there while a connection is.
    Connected,
}

/// Why a plugin's list of services is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UnsupportedServices {
    #[error("empty list of supported gRPC services (aka supported versions)")]
    Empty,
    #[error(
        "none of services supported by the plugin ({0:?}) are supported by the kubelet ({known:?})",
        known = [Service::V1, Service::V1Beta1].map(Service::label)
    )]
    None(Vec<String>),
}

// === impl Service ===

impl Service {
    /// What plugins write in `supported_versions` for it.
    pub fn label(self) -> &'static str {
        match self {
            Self::V1 => "v1.DRAPlugin",
            Self::V1Beta1 => "v1beta1.DRAPlugin",
            Self::Alpha4 => "v1alpha3.NodeService",
        }
    }

    pub(crate) fn prepare_path(self) -> PathAndQuery {
        PathAndQuery::from_static(match self {
            Self::V1 => "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources",
            Self::V1Beta1 => "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodePrepareResources",
            Self::Alpha4 => "/v1alpha3.Node/NodePrepareResources",
        })
    }

    pub(crate) fn unprepare_path(self) -> PathAndQuery {
        PathAndQuery::from_static(match self {
            Self::V1 => "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources",
            Self::V1Beta1 => "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodeUnprepareResources",
            Self::Alpha4 => "/v1alpha3.Node/NodeUnprepareResources",
        })
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

// === impl HealthService ===

impl HealthService {
    fn label(self) -> &'static str {
        match self {
            Self::V1 => "v1.DRAResourceHealth",
            Self::V1Alpha1 => "v1alpha1.DRAResourceHealth",
        }
    }

    pub(crate) fn watch_path(self) -> PathAndQuery {
        PathAndQuery::from_static(match self {
            Self::V1 => "/v1.DRAResourceHealth/NodeWatchResources",
            Self::V1Alpha1 => "/v1alpha1.DRAResourceHealth/NodeWatchResources",
        })
    }
}

/// The service that a kubelet calls on a plugin that lists `versions`.
pub(crate) fn choose_service(release: Release, versions: &[String]) -> Result<Service, UnsupportedServices> {
    if versions.is_empty() {
        return Err(UnsupportedServices::Empty);
    }
    let listed = |service: Service| versions.iter().any(|version| version == service.label());
    if release < Release::V1_34 {
        // Plugins once listed no services, so what is unknown is taken for the oldest.
        return Ok(if listed(Service::V1Beta1) { Service::V1Beta1 } else { Service::Alpha4 });
    }
    versions
        .iter()
        .find_map(|version| [Service::V1, Service::V1Beta1].into_iter().find(|service| version == service.label()))
        .ok_or_else(|| UnsupportedServices::None(versions.to_vec()))
}

/// The health service that a kubelet with the gate on watches at a plugin that lists `versions`.
pub(crate) fn choose_health_service(release: Release, versions: &[String]) -> Option<HealthService> {
    if release < Release::V1_34 {
        return None;
    }
    if release < Release::V1_37 {
        // Whatever the plugin lists.
        return Some(HealthService::V1Alpha1);
    }
    [HealthService::V1, HealthService::V1Alpha1]
        .into_iter()
        .find(|service| versions.iter().any(|version| version == service.label()))
}

/// Whether the gate `ResourceHealthStatus` is on by default.
pub(crate) fn health_by_default(release: Release) -> bool {
    release >= Release::V1_36
}

/// What the kubelet says in `:authority` to a DRA socket.
pub(crate) fn dra_authority(release: Release) -> Authority {
    if release < Release::V1_34 { Authority::Path } else { Authority::Localhost }
}

/// How the kubelet deals with several plugins of one driver.
pub(crate) fn instances(release: Release) -> Instances {
    match release {
        Release::V1_32 => Instances::Replaced,
        Release::V1_33 => Instances::LastAdded,
        _ => Instances::Connected,
    }
}

/// Whether a plugin whose NotifyRegistrationStatus fails is deregistered and tried again.
pub(crate) fn failed_notify_deregisters(release: Release) -> bool {
    release >= Release::V1_36
}

/// Whether `Device.share_id` is read. The field came in 1.35, in v1 alone.
pub(crate) fn reads_share_id(release: Release, service: Service) -> bool {
    release >= Release::V1_35 && service == Service::V1
}

/// Whether preparing a claim again forgets the devices of the time before; older kubelets collect duplicates.
pub(crate) fn prepare_resets_devices(release: Release) -> bool {
    release >= Release::V1_37
}

/// Whether `health_check_timeout_seconds` is read.
pub(crate) fn reads_health_timeout(release: Release) -> bool {
    release >= Release::V1_35
}

/// Whether the `message` of a health report is read.
pub(crate) fn reads_health_message(release: Release) -> bool {
    release >= Release::V1_36
}

/// Whether the kubelet stops watching a plugin that does not implement the health service.
pub(crate) fn unimplemented_health_ends(release: Release) -> bool {
    release >= Release::V1_37
}

/// Whether the gate `DRAWorkloadResourceClaims` exists.
pub(crate) fn knows_pod_groups(release: Release) -> bool {
    release >= Release::V1_36
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [&str; 4] = ["v1.DRAPlugin", "v1beta1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"];

    fn list(versions: &[&str]) -> Vec<String> {
        versions.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn old_kubelets_prefer_v1beta1_and_new_ones_what_is_listed_first() {
        for (release, versions, expected) in [
            (Release::V1_32, &ALL[..], Service::V1Beta1),
            (Release::V1_33, &ALL[..], Service::V1Beta1),
            (Release::V1_34, &ALL[..], Service::V1),
            (Release::V1_37, &["v1beta1.DRAPlugin", "v1.DRAPlugin"][..], Service::V1Beta1),
            (Release::V1_33, &["v1.DRAPlugin"][..], Service::Alpha4),
            (Release::V1_36, &["v2.DRAPlugin", "v1.DRAPlugin"][..], Service::V1),
        ] {
            assert_eq!(choose_service(release, &list(versions)), Ok(expected), "{release} {versions:?}");
        }
    }

    #[test]
    fn lists_without_a_known_service_are_refused() {
        assert_eq!(choose_service(Release::V1_32, &[]), Err(UnsupportedServices::Empty));
        let error = choose_service(Release::V1_36, &list(&["1.0.0"])).unwrap_err();
        assert_eq!(
            error.to_string(),
            "none of services supported by the plugin ([\"1.0.0\"]) are supported by the kubelet \
             ([\"v1.DRAPlugin\", \"v1beta1.DRAPlugin\"])"
        );
    }

    #[test]
    fn health_is_picked_from_the_list_only_by_new_kubelets() {
        assert_eq!(choose_health_service(Release::V1_33, &list(&ALL)), None);
        assert_eq!(choose_health_service(Release::V1_36, &[]), Some(HealthService::V1Alpha1));
        assert_eq!(choose_health_service(Release::V1_37, &list(&ALL)), Some(HealthService::V1));
        assert_eq!(choose_health_service(Release::V1_37, &list(&ALL[3..])), Some(HealthService::V1Alpha1));
        assert_eq!(choose_health_service(Release::V1_37, &list(&ALL[..2])), None);
    }
}
