// SPDX-License-Identifier: GPL-2.0

//! The smallest client on `rdma`: it connects to `server=ADDRESS:PORT`, sends a message, logs the
//! answer and disconnects; all that while it is being loaded.
//!
//! A sample, which is built for tests only.

#![deny(unsafe_code)]

use core::net::SocketAddrV4;
use kernel::{
    prelude::*,
    str::BStr,
    sync::Arc, //
};
use kx::{
    net::{
        addr::SockAddr,
        Net, //
    },
    sync::{
        Completion,
        SetOnce, //
    }, //
};
use rdma::{
    cm::{
        ActiveId,
        CmEvent,
        CmHandler,
        ConnParam,
        PortSpace, //
    },
    cq::PollContext,
    dma::DmaBuf,
    pd::Pd,
    qp::{
        Handler,
        QpConfig,
        QpRef, //
    },
    recv::{
        Received,
        RecvClass,
        Repost, //
    },
    sendq::{
        Doorbell,
        Signal,
        SqSpace, //
    },
    wc::Wc, //
};

const MESSAGE: &[u8] = b"hello";
/// Limit of each step.
const LIMIT_MS: u32 = 10_000;

#[allow(unsafe_code)]
mod param {
    //! The parameter of the module; the macro reaches into the loader.

    use kx::param::StringParam;

    kx::module_param! {
        /// The server.
        pub(crate) server: StringParam<32> = StringParam::new(""),
        "Address and port of the server, such as 10.0.0.1:7471";
    }
}

module! {
    type: Module,
    name: "ibtrs_sample_client",
    authors: ["The ibtrs authors"],
    description: "Sample: the smallest client",
    license: "GPL",
}

/// How far the connection is; events come on threads of the connection manager.
#[pin_data]
struct Connection {
    #[pin]
    address: Completion,
    #[pin]
    route: Completion,
    #[pin]
    established: Completion,
    #[pin]
    answered: Completion,
    failed: SetOnce<Error>,
}

impl Connection {
    fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                address <- Completion::new(),
                route <- Completion::new(),
                established <- Completion::new(),
                answered <- Completion::new(),
                failed: SetOnce::new(),
            }),
            GFP_KERNEL,
        )
    }

    fn wait(&self, step: &Completion) -> Result {
        step.wait_timeout(LIMIT_MS)?;
        self.failed.copy().map_or(Ok(()), Err)
    }

    fn fail(&self, error: Error) {
        self.failed.populate(error);
        for step in [
            &self.address,
            &self.route,
            &self.established,
            &self.answered,
        ] {
            step.complete_all();
        }
    }
}

impl CmHandler for Connection {
    fn event(&self, event: &CmEvent<'_>) {
        match event {
            CmEvent::AddrResolved => self.address.complete_all(),
            CmEvent::RouteResolved => self.route.complete_all(),
            CmEvent::Established(_) => self.established.complete_all(),
            _ => {
                pr_info!("{}\n", event.as_str());
                self.fail(ENOTCONN);
            }
        }
    }
}

/// Handles completions.
struct Messages(Arc<Connection>);

impl Handler for Messages {
    type Slot = ();

    fn received(&self, _qp: QpRef<'_, Self>, message: Received<'_>) -> Repost {
        pr_info!("the answer is {}\n", BStr::from_bytes(message.bytes));
        self.0.answered.complete_all();
        Repost::Yes
    }

    fn failed(&self, _qp: QpRef<'_, Self>, wc: &Wc) {
        // A flushed request only says that the queue pair is being closed.
        if !wc.is_flush() {
            pr_info!("{}\n", wc);
            self.0.fail(EIO);
        }
    }
}

struct Module;

impl kernel::Module for Module {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        let text = core::str::from_utf8(param::server.get())?;
        let server: SocketAddrV4 = text.parse().map_err(|_| EINVAL)?;
        let server = SockAddr::v4(server.ip().octets(), server.port());
        let connection = Connection::new()?;

        // An id finds the device that leads to the server.
        let mut id = ActiveId::new(&Net::current(), PortSpace::of(&server), connection.clone())?;
        id.resolve_addr(None, &server, LIMIT_MS)?;
        connection.wait(&connection.address)?;
        id.resolve_route(LIMIT_MS)?;
        connection.wait(&connection.route)?;

        // A queue pair of that device, with receive buffers before the server can send.
        let pd = Pd::new(&id.device()?)?;
        let config = QpConfig {
            send_depth: 16,
            send_reserve: 0,
            send_sges: 1,
            recv_depth: 16,
            payloads: false,
            context: PollContext::WorkQueue,
            vector: 0,
        };
        let qp = config.create(id.shared(), &pd, Messages(connection.clone()))?;
        let buffers = RecvClass {
            count: 16,
            bytes: 64,
            payload: 0,
        };
        qp.add_recvs(0, buffers)?;
        id.connect(ConnParam {
            private_data: &[],
            retry_count: 7,
            rnr_retry_count: 7,
            reads_by_peer: 0,
            reads: 0,
        })?;
        connection.wait(&connection.established)?;

        let message = DmaBuf::with(&pd, MESSAGE)?;
        let from = message.sge(0, MESSAGE.len())?;
        qp.send(SqSpace { wrs: 1, sges: 1 }, Doorbell::Now, |chain| {
            chain.send([from], Signal::Control);
        })?;
        connection.wait(&connection.answered)?;
        // Dropping the queue pair would do that as well, and waits for all completions.
        qp.disconnect();
        Ok(Self)
    }
}
