// SPDX-License-Identifier: GPL-2.0

//! Names of portals and sessions.

use ibmsg_proto::wire::PortalName;
use kernel::{
    prelude::*,
    str::BStr, //
};

use super::Bytes;

/// Bytes of the field of a name.
pub(crate) const NAME_LEN: usize = ibmsg_proto::limits::MAX_PORTAL_NAME;

/// A name of the kind that portals have.
///
/// # Invariants
///
/// The bytes before the first zero, of which there is at least one, are such a name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Name([u8; NAME_LEN]);

impl Name {
    /// Checks a name.
    ///
    /// # Errors
    ///
    /// [`EINVAL`]
    pub(crate) fn new(name: &[u8]) -> Result<Self> {
        PortalName::new(name).map_err(|_| EINVAL)?;
        let mut bytes = [0; NAME_LEN];
        bytes
            .get_mut(..name.len())
            .ok_or(EINVAL)?
            .copy_from_slice(name);
        // INVARIANT: It was checked, and a zero follows or the field is full.
        Ok(Self(bytes))
    }

    /// Takes the field of a structure: the name, then zeroes.
    ///
    /// # Errors
    ///
    /// [`EINVAL`]
    pub(crate) fn field(fields: &mut Bytes<'_>) -> Result<Self> {
        let field = fields.take(NAME_LEN)?;
        let len = field
            .iter()
            .position(|byte| *byte == 0)
            .unwrap_or(field.len());
        let (name, rest) = field.split_at_checked(len).ok_or(EINVAL)?;
        match rest.iter().all(|byte| *byte == 0) {
            true => Self::new(name),
            false => Err(EINVAL),
        }
    }

    /// The name.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        let len = self
            .0
            .iter()
            .position(|byte| *byte == 0)
            .unwrap_or(NAME_LEN);
        self.0.get(..len).unwrap_or(&[])
    }

    /// The field of a structure.
    pub(crate) fn as_field(&self) -> &[u8; NAME_LEN] {
        &self.0
    }

    /// The name for records.
    pub(crate) fn portal(&self) -> Option<PortalName<'_>> {
        PortalName::new(self.as_bytes()).ok()
    }
}

impl kernel::fmt::Display for Name {
    fn fmt(&self, f: &mut kernel::fmt::Formatter<'_>) -> kernel::fmt::Result {
        kernel::fmt::Display::fmt(BStr::from_bytes(self.as_bytes()), f)
    }
}
