// SPDX-License-Identifier: GPL-2.0

//! The directories of ports.

use super::{
    refuse,
    show_bool, //
};
use ibtrs_core::convert::{
    self,
    Shown, //
};
use ibtrs_proto::{
    addr::Addr,
    listen,
    name::DevicePath,
    text::{
        self,
        TextError, //
    },
    Errno, //
};
use ibtrs_server::{
    PortId,
    PortInfo,
    Ports, //
};
use kernel::{
    prelude::*,
    str::CString,
    sync::Arc, //
};
use kx::configfs::{
    Attr,
    Buf,
    Directory,
    Folder,
    Tree, //
};

/// The directory `ports`.
pub(super) struct PortDirs(pub(super) Arc<Ports>);

impl Directory for PortDirs {
    type Module = crate::LocalModule;

    fn make(&self, name: &CStr, tree: &Tree) -> Result<Folder> {
        DevicePath::new(name.to_bytes())
            .map_err(|error| refuse(name, "no name of a port", error.as_str(), error.errno()))?;
        let name = CString::try_from(name)?;
        let ports = self.0.clone();
        let id = ports.add()?;
        Folder::new(tree, PortDir { ports, id, name }).inspect_err(|_| self.0.remove(id))
    }
}

/// The directory of a port.
struct PortDir {
    ports: Arc<Ports>,
    id: PortId,
    name: CString,
}

impl PortDir {
    fn show(&self, buf: &mut Buf<'_>, show: impl Fn(&mut Buf<'_>, &PortInfo) -> Result) -> Result {
        show(buf, &self.ports.info(self.id)?)
    }

    /// Logs why a write to `file` is refused, and returns the error.
    fn refuse(&self, file: &str, why: &str, errno: Errno) -> Error {
        refuse(&self.name, file, why, errno)
    }

    fn store_address(&self, input: &[u8]) -> Result {
        let text = text::line(input).map_err(|error| (error.as_str(), error.errno()));
        let address = text
            .and_then(|text| Addr::parse(text).map_err(|error| (error.as_str(), error.errno())))
            .and_then(|addr| match listen::check(&addr) {
                Ok(()) => Ok(addr),
                Err(error) => Err((error.as_str(), error.errno())),
            });
        let address = address.map_err(|(why, errno)| self.refuse("address", why, errno))?;
        self.ports.set_address(self.id, address)
    }

    fn store_number(&self, input: &[u8]) -> Result {
        let number = text::decimal(input, 1, u16::MAX.into())
            .and_then(|number| u16::try_from(number).map_err(|_| TextError::Range));
        let number = number.map_err(|error| self.refuse("port", error.as_str(), error.errno()))?;
        self.ports.set_number(self.id, number)
    }

    fn store_enable(&self, input: &[u8]) -> Result {
        let on = text::decimal(input, 0, 1);
        let on = on.map_err(|error| self.refuse("enable", error.as_str(), error.errno()))?;
        if on == 0 {
            return self.ports.disable(self.id);
        }
        if self.ports.info(self.id)?.address.is_none() {
            return Err(self.refuse("enable", "address is not set", Errno::EINVAL));
        }
        self.ports.enable(self.id).map_err(|error| {
            let why = match error {
                ENODEV => "no RDMA device has the address",
                EADDRNOTAVAIL => {
                    "this machine does not have the address, or another program listens on all addresses"
                }
                EADDRINUSE => "another port, or another program, listens there",
                _ => "cannot listen",
            };
            self.refuse("enable", why, convert::errno(error))
        })
    }
}

impl Directory for PortDir {
    type Module = crate::LocalModule;

    const FILES: &'static [Attr<Self>] = &[
        Attr::rw(
            c"address",
            |this: &Self, buf: &mut Buf<'_>| {
                this.show(buf, |buf, port| match port.address {
                    Some(address) => buf.line(fmt!("{}", Shown(address))),
                    None => buf.bytes(b"\n"),
                })
            },
            Self::store_address,
        ),
        Attr::rw(
            c"port",
            |this: &Self, buf: &mut Buf<'_>| {
                this.show(buf, |buf, port| buf.line(fmt!("{}", port.number)))
            },
            Self::store_number,
        ),
        Attr::rw(
            c"enable",
            |this: &Self, buf: &mut Buf<'_>| {
                this.show(buf, |buf, port| show_bool(buf, port.enabled))
            },
            Self::store_enable,
        ),
        Attr::ro(c"listening", |this: &Self, buf: &mut Buf<'_>| {
            this.show(buf, |buf, port| show_bool(buf, port.listening))
        }),
    ];

    fn removed(&self) {
        self.ports.remove(self.id);
    }
}
