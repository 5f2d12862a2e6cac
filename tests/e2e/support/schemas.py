"""Judges answers by an OpenAPI document: the first line of a file is the document, each other one an answer.

Exits with 1, and says which, if there are answers that are not as it says.
"""

import json
import sys

import jsonschema_rs


def resolve(document, part):
    """What is meant by a part of the document that may be a reference."""
    while "$ref" in part:
        found = document
        for name in part["$ref"].removeprefix("#/").split("/"):
            found = found[name]
        part = found
    return part


def problems(document, validators, answer):
    """What is wrong with an answer."""
    operation = document["paths"][answer["path"]][answer["method"].lower()]
    response = resolve(document, operation["responses"][str(answer["status"])])
    contents = response.get("content")
    if answer["status"] in (429, 503) and answer["kind"] is None and not answer["body"]:
        # A hub needs no words to come again.
        return []
    if contents is None:
        return ["a body that is not described"] if answer["body"] else []
    if answer["kind"] not in contents:
        return [f"the type {answer['kind']}"]
    if answer["kind"] != "application/json":
        return []
    # References lead to the components, so these are part of each schema.
    schema = {"allOf": [contents[answer["kind"]]["schema"]], "components": document["components"]}
    key = json.dumps(schema["allOf"])
    if key not in validators:
        validators[key] = jsonschema_rs.Draft202012Validator(schema)
    try:
        body = json.loads(answer["body"])
    except ValueError as error:
        return [str(error)]
    return [f"{error.instance_path}: {error.message}" for error in validators[key].iter_errors(body)]


with open(sys.argv[1], encoding="utf-8") as lines:
    document, count, wrong, validators = json.loads(next(lines)), 0, 0, {}
    for line in lines:
        answer = json.loads(line)
        count += 1
        for problem in problems(document, validators, answer):
            wrong += 1
            print(answer["method"], answer["path"], answer["status"], problem[:500], answer["body"][:200])
if not wrong:
    print(f"{count} answers are as described")
sys.exit(1 if wrong else 0)
