//! The HTTP client of [`super::OutgoingClient`]: reqwest, which connects only to addresses that the
//! [`Connector`] allows.
//!
//! reqwest skips its resolver for a host that is written as an address. So the address is checked
//! three times: before each request, by the resolver, and on the new connection before HTTP is
//! sent.

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
use tower_layer::Layer;
use tower_service::Service;

use crate::connect::{Connector, Proxy};
use crate::failure::{Failure, Reason};
use crate::http::{HEAD_BYTES_MAX, HEADERS_MAX};

/// An idle connection is kept for the next request to its server for this long. Many servers close
/// after a minute. A request on a connection that the server is closing fails, and the caller must
/// send it again.
const IDLE_MAX: Duration = Duration::from_secs(20);

/// Idle connections to one server. With 1 concurrent requests close each other's connections
/// (hyperium/hyper#4134).
const IDLE_CONNECTIONS_MAX: usize = 4;

type BoxError = Box<dyn Error + Send + Sync>;

/// Builds a client that resolves names with `resolver`.
pub(super) fn build_client(connector: &Arc<Connector>, resolver: Arc<dyn Resolve>) -> Client {
    // Without this, proxies of the environment apply.
    let mut builder = Client::builder().no_proxy();
    if let Some(proxy) = connector.proxy() {
        builder = builder.proxy(reqwest_proxy(proxy));
    }
    let head_bytes_max = u32::try_from(HEAD_BYTES_MAX).expect("the limit fits 32 bits");
    builder
        .tls_backend_preconfigured(connector.tls_config())
        .redirect(redirect::Policy::none())
        .retry(retry::never())
        .referer(false)
        .dns_resolver(resolver)
        .connector_layer(AddressCheckLayer(Arc::clone(connector)))
        .connect_timeout(connector.timeout())
        .http1_title_case_headers()
        .http1_max_headers(HEADERS_MAX)
        .http2_max_header_list_size(head_bytes_max)
        .pool_idle_timeout(IDLE_MAX)
        .pool_max_idle_per_host(IDLE_CONNECTIONS_MAX)
        .build()
        .expect("the settings are constants, and TLS is configured")
}

fn reqwest_proxy(proxy: &Proxy) -> reqwest::Proxy {
    let through = reqwest::Proxy::all(proxy.url()).expect("the proxy URL was parsed before");
    match (proxy.authorization(), proxy.socks_login()) {
        (Some(authorization), _) => through.custom_http_auth(authorization.clone()),
        (None, Some((user, password))) => {
            // reqwest escapes all characters except `%`.
            let [user, password] = [user, password].map(|text| text.replace('%', "%25"));
            through.basic_auth(&user, &password)
        }
        (None, None) => through,
    }
}

/// Resolves names to allowed addresses.
pub(super) struct AllowedResolver(pub(super) Arc<Connector>);

impl Resolve for AllowedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let connector = Arc::clone(&self.0);
        Box::pin(async move {
            let addresses = connector.resolve(name.as_str()).await?;
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}

/// Checks the address of each new connection.
#[derive(Clone)]
struct AddressCheckLayer(Arc<Connector>);

impl<S> Layer<S> for AddressCheckLayer {
    type Service = AddressCheck<S>;

    fn layer(&self, inner: S) -> AddressCheck<S> {
        AddressCheck { inner, connector: Arc::clone(&self.0) }
    }
}

#[derive(Clone)]
struct AddressCheck<S> {
    inner: S,
    connector: Arc<Connector>,
}

impl<S, R> Service<R> for AddressCheck<S>
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
            // The operator chose the proxy, and a tunnel does not report the target's address.
            if connector.proxy().is_none() {
                let mut extras = Extensions::new();
                connection.connected().get_extras(&mut extras);
                let info = extras.get::<HttpInfo>().ok_or_else(|| {
                    Failure::new(Reason::Address, "the address of the connection is unknown")
                })?;
                connector.check_connected(info.remote_addr().ip())?;
            }
            Ok(connection)
        })
    }
}
