//! The HTTP client of [`super::Outgoing`]: reqwest, which connects only to addresses that the [`Connector`] allows.
//!
//! reqwest skips its resolver for a host that is written as an address. The address is therefore checked three times:
//! before each send, by the resolver, and on the connection that was made, before a byte of HTTP is sent.

use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::http::Extensions;
use hyper_util::client::legacy::connect::{Connection, HttpInfo};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::{Client, redirect, retry};
use tidings_subscriber::connect::{Connector, Proxy};
use tidings_subscriber::outcome::{Failure, Reason};
use tower_layer::Layer;
use tower_service::Service;

use super::HEAD_BYTES_MAX;

/// Headers of an answer.
const HEADERS_MAX: usize = 256;

/// A connection is kept this long for the next request to its server. Many servers close after a minute; a request on
/// a connection that its server is closing fails, and its owner has to send it again.
const IDLE_MAX: Duration = Duration::from_secs(20);

/// Idle connections to one server. With 1 concurrent requests close each other's connections (hyperium/hyper#4134).
const IDLE_CONNECTIONS_MAX: usize = 4;

type BoxError = Box<dyn Error + Send + Sync>;

/// A client that resolves names by `resolver`.
pub(super) fn client(connector: &Arc<Connector>, resolver: Arc<dyn Resolve>) -> Client {
    // Without this the environment's proxies count.
    let mut builder = Client::builder().no_proxy();
    if let Some(proxy) = connector.proxy() {
        builder = builder.proxy(through(proxy));
    }
    let head_bytes_max = u32::try_from(HEAD_BYTES_MAX).expect("it is small");
    builder
        .tls_backend_preconfigured(connector.tls_config())
        .redirect(redirect::Policy::none())
        .retry(retry::never())
        .referer(false)
        .dns_resolver(resolver)
        .connector_layer(CheckLayer(Arc::clone(connector)))
        .connect_timeout(connector.timeout())
        .http1_title_case_headers()
        .http1_max_headers(HEADERS_MAX)
        .http2_max_header_list_size(head_bytes_max)
        .pool_idle_timeout(IDLE_MAX)
        .pool_max_idle_per_host(IDLE_CONNECTIONS_MAX)
        .build()
        .expect("the settings are constants, and TLS is configured")
}

fn through(proxy: &Proxy) -> reqwest::Proxy {
    let through = reqwest::Proxy::all(proxy.url()).expect("it was parsed from a URL");
    match (proxy.authorization(), proxy.login()) {
        (Some(authorization), _) => through.custom_http_auth(authorization.clone()),
        (None, Some((user, password))) => {
            // reqwest escapes them, but for the escape itself.
            let [user, password] = [user, password].map(|text| text.replace('%', "%25"));
            through.basic_auth(&user, &password)
        }
        (None, None) => through,
    }
}

/// Resolves names to allowed addresses.
pub(super) struct AllowedAddresses(pub(super) Arc<Connector>);

impl Resolve for AllowedAddresses {
    fn resolve(&self, name: Name) -> Resolving {
        let connector = Arc::clone(&self.0);
        Box::pin(async move {
            let addresses = connector.resolve(name.as_str()).await?;
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}

/// Checks the address of each connection that the client makes.
#[derive(Clone)]
struct CheckLayer(Arc<Connector>);

impl<S> Layer<S> for CheckLayer {
    type Service = Check<S>;

    fn layer(&self, inner: S) -> Check<S> {
        Check { inner, connector: Arc::clone(&self.0) }
    }
}

#[derive(Clone)]
struct Check<S> {
    inner: S,
    connector: Arc<Connector>,
}

impl<S, R> Service<R> for Check<S>
where
    S: Service<R, Error = BoxError>,
    S::Response: Connection,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, to: R) -> Self::Future {
        let connecting = self.inner.call(to);
        let connector = Arc::clone(&self.connector);
        Box::pin(async move {
            let connection = connecting.await?;
            // Behind a proxy it is the operator's choice, and a tunnel does not tell.
            if connector.proxy().is_none() {
                let mut extras = Extensions::new();
                connection.connected().get_extras(&mut extras);
                let info = extras.get::<HttpInfo>().ok_or_else(|| {
                    Failure::new(Reason::Address, "the address of the connection is not known")
                })?;
                connector.check_connected(info.remote_addr().ip())?;
            }
            Ok(connection)
        })
    }
}
