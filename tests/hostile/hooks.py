"""A Schemathesis serializer for bodies of JSON lines."""

import json

import schemathesis


@schemathesis.serializer("application/x-ndjson")
def lines(ctx: schemathesis.SerializationContext, value) -> bytes:
    """Serializes a generated body: text unchanged, other values as one line."""
    text = value if isinstance(value, str) else json.dumps(value)
    return text.encode("utf-8", errors="surrogatepass")
