"""Receives events from a webhook of tarry: verifies the signature, and handles each event once.

WEBHOOK_SECRET=whsec_… python receiver.py PORT. It needs Python alone; the library `standardwebhooks` does the same.
"""

import base64
import hashlib
import hmac
import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

KEY = base64.b64decode(os.environ["WEBHOOK_SECRET"].removeprefix("whsec_"))
TOLERANCE_S = 300
LARGEST_BODY = 1 << 20

handled = set()  # in production, a table: an event can be delivered again after a restart


def is_signed(headers, body):
    """Whether the request is from somebody who has the secret, and not an old one that is sent again."""
    event_id, timestamp = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    if not timestamp.isdigit() or abs(time.time() - int(timestamp)) > TOLERANCE_S:
        return False
    digest = hmac.digest(KEY, f"{event_id}.{timestamp}.".encode() + body, hashlib.sha256)
    expected = "v1," + base64.b64encode(digest).decode()
    given = headers.get("webhook-signature", "").split()
    return any(hmac.compare_digest(expected.encode(), one.encode()) for one in given)


class Receiver(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        length = int(self.headers.get("content-length", 0))
        if length > LARGEST_BODY:
            self.close_connection = True
            self.answer(413)
            return
        body = self.rfile.read(length)
        if not is_signed(self.headers, body):
            self.answer(401)
            return
        event = json.loads(body)
        if event["id"] not in handled:
            handle(event)
            handled.add(event["id"])
        self.answer(204)  # only now: without a 2xx, tarry delivers the event again

    def answer(self, status):
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        """Without a line for each request."""


def handle(event):
    """Keep it short: tarry waits for the answer."""
    print(json.dumps({"event": event["type"], "about": event["subject"], "data": event["data"]}), flush=True)


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Receiver).serve_forever()
