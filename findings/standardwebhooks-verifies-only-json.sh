#!/usr/bin/env bash
# Package: standardwebhooks 1.1.0 (PyPI)
# Input: a plain text body, signed by the library's own `sign`.
# Guess: `verify` checks the signature of any bytes. Its error for a bad message is
#   WebhookVerificationError.
# Behaviour: `verify` parses the body as JSON after the signature has matched, and raises the
#   parser's JSONDecodeError. A receiver that handles only WebhookVerificationError answers 500.
# Output:
#   {"a": 1}: {'a': 1}
#   plain text: JSONDecodeError
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip --quiet --disable-pip-version-check install standardwebhooks==1.1.0

cat > verify.py <<'P'
from base64 import b64encode
from datetime import datetime, timezone
from standardwebhooks import Webhook

webhook = Webhook(b64encode(b"0123456789abcdef").decode())
for body in ['{"a": 1}', "plain text"]:
    now = datetime.now(timezone.utc)
    headers = {
        "webhook-id": "message",
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": webhook.sign("message", now, body),
    }
    try:
        print(f"{body}: {webhook.verify(body, headers)}")
    except Exception as error:
        print(f"{body}: {type(error).__name__}")
P
seen=$(venv/bin/python verify.py)
echo "$seen"
[ "$seen" = "{\"a\": 1}: {'a': 1}
plain text: JSONDecodeError" ]
