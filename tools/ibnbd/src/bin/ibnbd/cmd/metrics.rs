// SPDX-License-Identifier: GPL-2.0

//! `metrics`: printed, in a file, or served over HTTP.

use std::cell::RefCell;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{HeaderValue, ALLOW, CONTENT_TYPE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use ibnbd_host::metrics::{self as prometheus, Server, Totals};
use ibnbd_host::Root;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::LocalSet;

use super::observe::replace;
use super::Done;
use crate::context::Context;
use crate::fail::Failure;

pub(crate) const HELP: &str = "\
Examples:
  ibnbd metrics --listen                      serves http://127.0.0.1:11234/metrics
  ibnbd metrics --listen [::]:11234           the same, to all machines that reach the port
  ibnbd metrics --textfile /var/lib/prometheus/node-exporter/ibnbd.prom

Nobody has to log in to read what is served: names of disks, sessions and addresses are in it.";

/// Where metrics are served unless an address is given.
const METRICS_ADDRESS: &str = "127.0.0.1:11234";

#[derive(Args, Debug)]
pub(crate) struct Metrics {
    /// A file of node_exporter's textfile collector, which is replaced at once
    #[arg(long, value_name = "FILE")]
    pub(crate) textfile: Option<PathBuf>,
    /// Serves them over HTTP, until it is ended; 127.0.0.1:11234 without an address
    #[arg(long, value_name = "ADDRESS:PORT", num_args = 0..=1, default_missing_value = METRICS_ADDRESS)]
    #[arg(conflicts_with = "textfile")]
    pub(crate) listen: Option<SocketAddr>,
}

/// A connection serves one request, and is closed after this time whatever its client does.
const CONNECTION: Duration = Duration::from_secs(10);
/// Connections at a time; others wait in the listener's backlog.
const CONNECTIONS: usize = 8;
/// The wait after a connection could not be accepted, for want of file descriptors for example.
const PAUSE: Duration = Duration::from_millis(100);

/// What is served.
struct Served {
    root: Root,
    /// From the first answer on.
    totals: RefCell<Totals>,
}

const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

pub(super) fn metrics(context: &Context, words: &Metrics) -> Done {
    if let Some(address) = words.listen {
        return serve(context, address);
    }
    let machine = prometheus::read(&context.root);
    context.warn(&machine.notes);
    let server = Server::read(&context.root, &machine);
    let text = prometheus::text(&machine, &server, &mut Totals::default());
    match &words.textfile {
        None => context.print(&text)?,
        Some(file) => replace(file, &text)?,
    }
    Ok(0)
}

/// Serves until the process is ended.
fn serve(context: &Context, address: SocketAddr) -> Done {
    let failed =
        |error: std::io::Error| Failure::system(format!("cannot listen on {address}"), &error);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()
        .map_err(failed)?;
    let served = Rc::new(Served {
        root: context.root.clone(),
        totals: RefCell::default(),
    });
    LocalSet::new().block_on(&runtime, async {
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        context.say(&format!("http://{address}/metrics"))?;
        accept(&listener, &served).await
    })
}

async fn accept(listener: &TcpListener, served: &Rc<Served>) -> Done {
    let slots = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        // Nobody closes the semaphore.
        let slot = Arc::clone(&slots).acquire_owned().await.ok();
        match listener.accept().await {
            Ok((stream, _)) => {
                let served = Rc::clone(served);
                tokio::task::spawn_local(async move {
                    connection(stream, &served).await;
                    drop(slot);
                });
            }
            Err(error) => {
                note!("warning: a connection is not accepted: {error}");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

async fn connection(stream: TcpStream, served: &Served) {
    let service = service_fn(|request| async move { answer(served, &request) });
    let served = http1::Builder::new()
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    // Only its client learns of a request that makes no sense, or that takes too long.
    let _ = tokio::time::timeout(CONNECTION, served).await;
}

type Answer = Response<Full<Bytes>>;

fn answer(served: &Served, request: &Request<Incoming>) -> Result<Answer, Infallible> {
    let answer = match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/metrics") => {
            let machine = prometheus::read(&served.root);
            let server = Server::read(&served.root, &machine);
            let mut totals = served.totals.borrow_mut();
            let text = prometheus::text(&machine, &server, &mut totals);
            with(StatusCode::OK, text)
        }
        (&Method::GET | &Method::HEAD, _) => {
            with(StatusCode::NOT_FOUND, "see /metrics\n".to_owned())
        }
        _ => {
            let mut answer = with(StatusCode::METHOD_NOT_ALLOWED, "GET or HEAD\n".to_owned());
            let allowed = HeaderValue::from_static("GET, HEAD");
            answer.headers_mut().insert(ALLOW, allowed);
            answer
        }
    };
    Ok(answer)
}

fn with(status: StatusCode, text: String) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::from(text)));
    *answer.status_mut() = status;
    let kind = HeaderValue::from_static(TEXT);
    answer.headers_mut().insert(CONTENT_TYPE, kind);
    answer
}
