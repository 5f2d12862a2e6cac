//! The `OpenAPI` description: of one request, and the document of all.
//!
//! An [`Operation`] is declared beside the handler of its request. The document follows from all
//! operations and the schemas that they name.

pub mod schema;

use axum::http::Method;
use serde_json::{Map, Value, json};

use self::schema::{Schema, named};

const JSON: &str = "application/json";

/// Responses that many requests have: status, name in the components, and meaning.
const REFUSALS: [(u16, &str, &str); 12] = [
    (400, "Bad", "The request is invalid; nothing has changed"),
    (
        401,
        "Unauthenticated",
        "The token is unknown, or the request has none and anonymous clients may not do this. Send \
         a token with `Authorization: Bearer`",
    ),
    (
        403,
        "Denied",
        "The request is not allowed: it comes from a page of another site, its host name is not \
         configured, it has an attribute that is not accepted over HTTP, or the client lacks a \
         permission",
    ),
    (404, "NotFound", "No object has that name"),
    (408, "Slow", "The body did not arrive in time"),
    (
        409,
        "Conflict",
        "The request conflicts with the current state; or the log of the group is damaged, and the \
         group rejects work until it is repaired: GET /groups/{group} returns the problem",
    ),
    (413, "TooLong", "The body or an event is longer than its limit"),
    (
        415,
        "Unsupported",
        "The Content-Type, Content-Encoding or charset of the body is not supported",
    ),
    (422, "Reused", "The Idempotency-Key was used with another body before"),
    (429, "Limit", "A documented limit is reached"),
    (
        503,
        "Unavailable",
        "Events arrive faster than they are stored or consumed; writing to the disk failed; or \
         there is no answer yet (`timeout`), because the disk is full or slow: then the effect is \
         not known yet, and sending the request again is safe and does nothing twice",
    ),
    (
        507,
        "Full",
        "The disk is full: nothing is stored, and a group without room stops until there is some",
    ),
];

/// A parameter of a query or a header.
#[derive(Debug, Clone)]
#[must_use]
pub struct Param {
    name: &'static str,
    value: Value,
}

impl Param {
    /// An optional parameter.
    pub fn new(name: &'static str, schema: Schema, about: &str) -> Self {
        let schema = Value::from(schema);
        Self { name, value: json!({ "name": name, "description": about, "schema": schema }) }
    }

    /// Makes it mandatory.
    pub fn required(mut self) -> Self {
        self.value["required"] = true.into();
        self
    }

    /// With an example.
    pub fn example(mut self, example: impl Into<Value>) -> Self {
        self.value["example"] = example.into();
        self
    }

    fn place(mut self, place: &str) -> Value {
        self.value["in"] = place.into();
        self.value
    }
}

/// The description of one request.
#[derive(Debug, Clone)]
#[must_use]
pub struct Operation {
    pub(super) method: Method,
    /// With the names of its parts, such as `/topics/{topic}`.
    pub(super) path: &'static str,
    /// The names of the parameters of its query.
    pub(super) query: Vec<&'static str>,
    value: Value,
}

impl Operation {
    /// A request with the refusals that every request can have.
    pub fn new(method: Method, path: &'static str, id: &str, summary: &str) -> Self {
        let value = json!({ "operationId": id, "summary": summary, "responses": {} });
        Self { method, path, query: Vec::new(), value }.refuses(&[401, 403, 429])
    }

    /// In an area of the description.
    pub fn area(mut self, area: &str) -> Self {
        self.value["tags"] = json!([area]);
        self
    }

    /// With a parameter in its path.
    pub fn part(self, param: Param) -> Self {
        self.param(param.required().place("path"))
    }

    /// With parameters in its query.
    pub fn query(mut self, params: impl IntoIterator<Item = Param>) -> Self {
        for param in params {
            self.query.push(param.name);
            self = self.param(param.place("query"));
        }
        self
    }

    /// With a header.
    pub fn header(self, param: Param) -> Self {
        self.param(param.place("header"))
    }

    fn param(mut self, param: Value) -> Self {
        let operation = self.value.as_object_mut().expect("it is an object");
        let params = operation.entry("parameters").or_insert_with(|| json!([]));
        params.as_array_mut().expect("it is a list").push(param);
        self
    }

    /// With a body of one of these types, and the refusals of a body.
    pub fn body(
        mut self,
        about: &str,
        types: impl IntoIterator<Item = (&'static str, Schema)>,
    ) -> Self {
        let content = content(types);
        self.value["requestBody"] =
            json!({ "required": true, "description": about, "content": content });
        self.refuses(&[408, 413])
    }

    /// With a JSON body of a named schema.
    pub fn json_body(self, about: &str, name: &str) -> Self {
        self.body(about, [(JSON, named(name))]).refuses(&[415])
    }

    /// With an answer of one of these types; without types it has no body.
    pub fn answer(
        mut self,
        status: u16,
        about: &str,
        types: impl IntoIterator<Item = (&'static str, Schema)>,
    ) -> Self {
        let content = content(types);
        let mut answer = json!({ "description": about });
        if content != json!({}) {
            answer["content"] = content;
        }
        self.value["responses"][status.to_string()] = answer;
        self
    }

    /// With a JSON answer of this schema.
    pub fn json(self, status: u16, about: &str, schema: Schema) -> Self {
        self.answer(status, about, [(JSON, schema)])
    }

    /// With a successful JSON answer of a named schema.
    pub fn ok(self, about: &str, name: &str) -> Self {
        self.json(200, about, named(name))
    }

    /// With a special meaning of a refusal.
    pub fn refusal(self, status: u16, about: &str) -> Self {
        self.json(status, about, named("Refusal"))
    }

    /// With these refusals.
    pub fn refuses(mut self, statuses: &[u16]) -> Self {
        for status in statuses {
            let (_, name, _) = REFUSALS
                .iter()
                .find(|(known, ..)| known == status)
                .unwrap_or_else(|| panic!("no refusal with the status {status}"));
            self.value["responses"][status.to_string()] =
                json!({ "$ref": format!("#/components/responses/{name}") });
        }
        self
    }

    /// A request of any client: no token is read, and nothing is refused.
    pub fn public(mut self) -> Self {
        self.value["responses"] = json!({});
        self.value["security"] = json!([]);
        self
    }
}

fn content(types: impl IntoIterator<Item = (&'static str, Schema)>) -> Value {
    let types = types.into_iter();
    let types =
        types.map(|(name, schema)| (name.to_owned(), json!({ "schema": Value::from(schema) })));
    Value::Object(types.collect())
}

/// The document of these operations and schemas.
pub(super) fn document(
    operations: impl IntoIterator<Item = Operation>,
    schemas: impl IntoIterator<Item = (&'static str, Schema)>,
) -> Value {
    let schemas = schemas.into_iter().map(|(name, schema)| (name.to_owned(), Value::from(schema)));
    let mut paths = json!({});
    for Operation { method, path, value, .. } in operations {
        paths[path][method.as_str().to_lowercase()] = value;
    }
    let responses = REFUSALS.map(|(_, name, about)| {
        let schema = Value::from(named("Refusal"));
        (
            name.to_owned(),
            json!({ "description": about, "content": { JSON: { "schema": schema } } }),
        )
    });
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Tidings",
            "version": env!("CARGO_PKG_VERSION"),
            "license": { "name": "MIT OR Apache-2.0" },
            "description":
                "Topics, groups and jobs of a Tidings broker over HTTP. The protocol defines their \
                 meaning and all limits. Names, codes and settings are the same as in the line \
                 protocol. Unknown parameters and keys are rejected.",
        },
        "servers": [{ "url": "/" }],
        "security": [{}, { "token": [] }],
        "paths": paths,
        "components": {
            "schemas": Value::Object(schemas.collect()),
            "responses": Value::Object(Map::from_iter(responses)),
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description":
                        "A token of a principal. A broker that lets anonymous clients do what they \
                         ask for needs none.",
                },
            },
        },
    })
}
