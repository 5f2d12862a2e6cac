"""Checks HTTP responses against an OpenAPI document.

The first line of the file is the document; each other line is a request with its response. Prints
the responses that violate the document, and exits with 1 if there are any.
"""

import json
import sys

import jsonschema_rs


def resolve(document, part):
    """Resolves a part of the document that may be a reference."""
    while "$ref" in part:
        found = document
        for name in part["$ref"].removeprefix("#/").split("/"):
            found = found[name]
        part = found
    return part


def problems(document, validators, exchange):
    """The violations of a response."""
    operation = document["paths"][exchange["path"]][exchange["method"].lower()]
    response = resolve(document, operation["responses"][str(exchange["status"])])
    contents = response.get("content")
    if exchange["status"] in (429, 503) and exchange["kind"] is None and not exchange["body"]:
        # A hub retries without a body.
        return []
    if contents is None:
        return ["a body without a description"] if exchange["body"] else []
    # A type may be described with or without its parameters.
    kind = exchange["kind"]
    if kind not in contents:
        kind = (kind or "").split(";")[0]
    if kind not in contents:
        return [f"the type {exchange['kind']}"]
    if kind != "application/json":
        return []
    # References point to the components, so each schema includes them.
    schema = {"allOf": [contents[kind]["schema"]], "components": document["components"]}
    key = json.dumps(schema["allOf"])
    if key not in validators:
        validators[key] = jsonschema_rs.Draft202012Validator(schema)
    try:
        body = json.loads(exchange["body"])
    except ValueError as error:
        return [str(error)]
    return [f"{error.instance_path}: {error.message}" for error in validators[key].iter_errors(body)]


with open(sys.argv[1], encoding="utf-8") as lines:
    document, count, wrong, validators = json.loads(next(lines)), 0, 0, {}
    for line in lines:
        exchange = json.loads(line)
        count += 1
        for problem in problems(document, validators, exchange):
            wrong += 1
            print(exchange["method"], exchange["path"], exchange["status"], problem[:500], exchange["body"][:200])
if not wrong:
    print(f"{count} answers are as described")
sys.exit(1 if wrong else 0)
