"""What Schemathesis has to be told: how a body of JSON lines is sent."""

import json

import schemathesis


@schemathesis.serializer("application/x-ndjson")
def lines(ctx: schemathesis.SerializationContext, value) -> bytes:
    """A made-up body: text as it is, anything else as a line."""
    text = value if isinstance(value, str) else json.dumps(value)
    return text.encode("utf-8", errors="surrogatepass")
