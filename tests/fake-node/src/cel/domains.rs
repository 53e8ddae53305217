//! `device.attributes` and `device.capacity`: a map of domains in which every domain is present.

use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use ::cel::ExecutionError;
use ::cel::common::traits::{Container, Indexer, Iterable, Iterator, Sizer};
use ::cel::common::types::{CelInt, CelMap, CelString, MAP_TYPE, Type};
use ::cel::common::value::{CowVal, StaticVal, Val};

/// What a domain contains that a device has nothing of.
static EMPTY: LazyLock<CelMap<'static>> = LazyLock::new(CelMap::default);

/// The values of a device by domain.
#[derive(Debug, Clone)]
pub(super) struct Domains(Arc<Vec<(CelString<'static>, CelMap<'static>)>>);

/// Goes over the domains that a device has.
struct Names<'b>(std::slice::Iter<'b, (CelString<'static>, CelMap<'static>)>);

// === impl Domains ===

impl Domains {
    pub(super) fn new(domains: HashMap<String, CelMap<'static>>) -> Self {
        Self(Arc::new(domains.into_iter().map(|(domain, values)| (domain.into(), values)).collect()))
    }

    fn find(&self, domain: &dyn Val) -> Result<Option<&CelMap<'static>>, ExecutionError> {
        let Some(domain) = domain.downcast_ref::<CelString<'_>>() else {
            let got = domain.get_type().name().to_owned();
            return Err(ExecutionError::UnexpectedType { got, want: "string".to_owned() });
        };
        Ok(self.0.iter().find(|(name, _)| name.inner() == domain.inner()).map(|(_, values)| values))
    }
}

impl Val for Domains {
    fn get_type(&self) -> &Type {
        &MAP_TYPE
    }

    fn cel_type() -> &'static Type {
        &MAP_TYPE
    }

    fn as_container(&self) -> Option<&dyn Container> {
        Some(self)
    }

    fn as_indexer<'b, 'v>(&'b self) -> Option<&'b (dyn Indexer + 'v)>
    where
        Self: 'v,
    {
        Some(self)
    }

    fn as_iterable<'b, 'v>(&'b self) -> Option<&'b (dyn Iterable + 'v)>
    where
        Self: 'v,
    {
        Some(self)
    }

    fn as_sizer(&self) -> Option<&dyn Sizer> {
        Some(self)
    }

    fn clone_as_boxed<'v>(&self) -> Box<dyn Val + 'v> {
        Box::new(self.clone())
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

impl StaticVal for Domains {}

impl Indexer for Domains {
    fn get<'b, 'v>(&'b self, domain: &dyn Val) -> Result<CowVal<'b, 'v>, ExecutionError>
    where
        Self: 'v,
    {
        Ok(CowVal::Borrowed(self.find(domain)?.unwrap_or(&EMPTY)))
    }

    fn steal<'v>(self: Box<Self>, domain: &dyn Val) -> Result<Box<dyn Val + 'v>, ExecutionError>
    where
        Self: 'v,
    {
        self.get(domain).map(CowVal::into_owned)
    }
}

impl Container for Domains {
    fn contains(&self, domain: &dyn Val) -> Result<bool, ExecutionError> {
        Ok(self.find(domain)?.is_some())
    }
}

impl Sizer for Domains {
    fn size(&self) -> CelInt {
        CelInt::from(i64::try_from(self.0.len()).unwrap_or(i64::MAX))
    }
}

impl Iterable for Domains {
    fn iter<'b, 'v>(&'b self) -> Box<dyn Iterator<'b, 'v> + 'b>
    where
        Self: 'v,
    {
        Box::new(Names(self.0.iter()))
    }
}

impl<'b, 'v> Iterator<'b, 'v> for Names<'b> {
    fn next(&mut self) -> Option<&'b (dyn Val + 'v)> {
        self.0.next().map(|(name, _)| name as &dyn Val)
    }
}
