"""Verifies pushed requests with the independent library standardwebhooks, and reads CloudEvents with the
library cloudevents: push_messages.py SECRET
Its input is a line of JSON for each request, with headers and body. It prints the events of each request as a
line of JSON."""
import json, sys

from cloudevents.core.bindings.http import HTTPMessage, from_http_event
from cloudevents.core.formats.json import JSONFormat
from standardwebhooks import Webhook


def attributes(event):
    # The library adds the time of reading to an event without `time`.
    return {**event.get_attributes(), "time": None, "data": event.get_data()}


for line in sys.stdin:
    request = json.loads(line)
    headers, body = request["headers"], request["body"]
    content = Webhook(sys.argv[1]).verify(body, headers)
    if headers["content-type"] == "application/cloudevents+json":
        content = attributes(from_http_event(HTTPMessage(headers=headers, body=body.encode())))
    elif headers["content-type"] == "application/cloudevents-batch+json":
        content = [attributes(JSONFormat().read(None, json.dumps(event))) for event in content]
    print(json.dumps(content, default=str), flush=True)
