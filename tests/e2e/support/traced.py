"""A publisher and a consumer with OpenTelemetry.

    traced.py publish URL EVENT     publishes within a span, and prints its trace id
    traced.py consume FILE          makes a span of the context in TRACEPARENT, and writes its trace id
"""

import os
import sys
import urllib.request

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

tracer = TracerProvider().get_tracer("traced")
propagator = TraceContextTextMapPropagator()


def trace_id(span):
    return format(span.get_span_context().trace_id, "032x")


if sys.argv[1] == "publish":
    with tracer.start_as_current_span("publish") as span:
        headers = {"content-type": "text/plain"}
        propagator.inject(headers)
        event = sys.argv[3].encode()
        urllib.request.urlopen(urllib.request.Request(sys.argv[2], event, headers)).read()
        print(trace_id(span))
else:
    context = propagator.extract({"traceparent": os.environ["TRACEPARENT"]})
    with tracer.start_as_current_span("consume", context) as span, open(sys.argv[2], "w") as file:
        file.write(trace_id(span))
