//! The routes: each is declared once, with method, path, parameters, answers and handler. The
//! router and the `OpenAPI` document follow.

mod groups;
mod jobs;
mod params;
mod system;
mod topics;

use std::sync::Arc;

use axum::handler::Handler;
use axum::http::Method;
use axum::routing::{MethodFilter, MethodRouter, on};
use axum::{Extension, Router};
use bytes::Bytes;

use super::HttpState;
use super::embedded_handlers::EmbeddedHandler;
use super::openapi::{Operation, document};
use super::request_input::KnownParams;

/// A request, and what answers it.
struct Route {
    operation: Operation,
    handler: MethodRouter<Arc<HttpState>>,
}

fn get(path: &'static str, id: &str, summary: &str) -> Operation {
    Operation::new(Method::GET, path, id, summary).refuses(&[400])
}

fn put(path: &'static str, id: &str, summary: &str) -> Operation {
    Operation::new(Method::PUT, path, id, summary).refuses(&[400])
}

fn post(path: &'static str, id: &str, summary: &str) -> Operation {
    Operation::new(Method::POST, path, id, summary).refuses(&[400])
}

fn patch(path: &'static str, id: &str, summary: &str) -> Operation {
    Operation::new(Method::PATCH, path, id, summary).refuses(&[400])
}

fn delete(path: &'static str, id: &str, summary: &str) -> Operation {
    Operation::new(Method::DELETE, path, id, summary).refuses(&[400])
}

impl Operation {
    /// Answered by a handler, which gets no other parameters than these.
    fn by<H, T>(self, handler: H) -> Route
    where
        H: Handler<T, Arc<HttpState>>,
        T: 'static,
    {
        let method = MethodFilter::try_from(self.method.clone()).expect("a method of the router");
        let known = KnownParams(self.query.as_slice().into());
        let handler = on(method, handler).layer(Extension(known));
        Route { operation: self, handler }
    }
}

/// The routes of the broker, by area, but for that of the live states.
fn areas() -> [(&'static str, Vec<Route>); 5] {
    [
        ("system", system::routes()),
        ("topics", topics::routes()),
        ("hooks", topics::hook_routes()),
        ("groups", groups::routes()),
        ("jobs", jobs::routes()),
    ]
}

/// The router of the broker's own routes, but for that of the live states.
pub(super) fn router() -> Router<Arc<HttpState>> {
    let routes = areas().into_iter().flat_map(|(_, routes)| routes);
    routes.fold(Router::new(), |router, Route { operation, handler }| {
        router.route(operation.path, handler)
    })
}

/// The router of the live states, which need the other routes.
pub(super) fn live_router<H, T>(handler: H) -> Router<Arc<HttpState>>
where
    H: Handler<T, Arc<HttpState>>,
    T: 'static,
{
    let Route { operation, handler } = system::live().by(handler);
    Router::new().route(operation.path, handler)
}

/// The `OpenAPI` document of a broker with these embedded handlers.
pub(super) fn openapi(handlers: &[Arc<dyn EmbeddedHandler>]) -> Bytes {
    let own = areas()
        .into_iter()
        .flat_map(|(area, routes)| routes.into_iter().map(move |route| route.operation.area(area)));
    let embedded = handlers.iter().flat_map(|handler| handler.operations());
    let operations = own.chain([system::live().area("system")]).chain(embedded);
    let schemas = [system::schemas(), topics::schemas(), groups::schemas(), jobs::schemas()];
    Bytes::from(document(operations, schemas.concat()).to_string())
}
