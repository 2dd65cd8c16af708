"""A small Tailback client: JSON over one kept-alive connection, with retries."""
import http.client
import json
import random
import time
import urllib.parse


class Refused(Exception):
    """The server returned a problem that a retry cannot solve."""

    def __init__(self, problem):
        super().__init__(f"{problem.get('status')} {problem.get('code')}: {problem.get('detail')}")
        self.code = problem.get("code")


class Tailback:
    def __init__(self, url, patience_s=30):
        parts = urllib.parse.urlsplit(url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        # Longer than the maximum wait_ms, so that a waiting reserve never times out.
        self.connection = kind(parts.netloc, timeout=75)
        self.prefix = parts.path.rstrip("/")
        self.patience_s = patience_s

    def call(self, method, path, body=None):
        """Sends a request; retries for up to `patience_s` while the server is unavailable or overloaded.

        The retry is safe: reserve, commit, move and a push with a key may all be sent again if the response was
        lost.
        """
        pause, give_up = 0.05, None
        while True:
            try:
                return self._once(method, path, body)
            except (OSError, http.client.HTTPException) as trouble:
                self.connection.close()  # its state is unknown; the next request opens a new one
                give_up = give_up or time.monotonic() + self.patience_s
                if time.monotonic() + pause > give_up:
                    raise
                time.sleep(max(pause * random.uniform(0.5, 1), getattr(trouble, "retry_after_s", 0)))
                pause = min(pause * 2, 2)

    def _once(self, method, path, body):
        data = None if body is None else json.dumps(body)
        headers = {} if body is None else {"content-type": "application/json"}
        self.connection.request(method, self.prefix + path, data, headers)
        response = self.connection.getresponse()
        text = response.read()
        if response.status in (429, 502, 503, 504):
            busy = http.client.HTTPException(f"{response.status} to {method} {path}: {text[:200]!r}")
            busy.retry_after_s = int(response.headers.get("retry-after", 0))
            raise busy
        result = json.loads(text) if text else {}
        if response.status >= 400:
            raise Refused(result)
        return result
