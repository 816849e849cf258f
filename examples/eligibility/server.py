"""An eligibility endpoint: is the device of a notification still active?

It is asked     {"policy": "notify-high", "key": "device_id", "values": ["d-1", "d-2", "d-3"]}
and answers     {"skip": {"d-2": "device d-2 is inactive"}}

python server.py PORT FILE, where FILE has the ids of inactive devices, one in a line. It is read for each request.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Eligibility(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # keeps the connection open for the next request

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        inactive = set(INACTIVE.read_text(encoding="utf-8").split())
        skip = {value: f"device {value} is inactive" for value in asked["values"] if value in inactive}
        answer = json.dumps({"skip": skip}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        """Without a line for each request."""


if __name__ == "__main__":
    PORT, INACTIVE = int(sys.argv[1]), Path(sys.argv[2])
    server = ThreadingHTTPServer(("127.0.0.1", PORT), Eligibility)
    print(f"http://127.0.0.1:{server.server_port}/eligible", flush=True)
    server.serve_forever()
