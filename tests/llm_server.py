"""A scripted server that speaks OpenAI's protocol.

It is real HTTP on a port of its own; a script says what it answers to each
request.
"""

import contextlib
import dataclasses
import http.server
import json
import threading
import time
from typing import Any, Callable, Iterator

from rods_jax.host.synthesis.llm.records import LlmConfig

TOKENS = (1000, 10)  # that every answer counts: read, written


@dataclasses.dataclass
class Reply:
  """What the server sends back.

  Attributes:
    text: of the model; or the whole body, if it is bytes.
    status: of HTTP.
    headers: besides the usual ones.
    delay_s: before it is sent.
    after: it is sent when this is set, or after two seconds.
    finish: the finish reason.
  """

  text: str | bytes = ''
  status: int = 200
  headers: dict[str, str] = dataclasses.field(default_factory=dict)
  delay_s: float = 0.0
  after: threading.Event | None = None
  finish: str = 'stop'

  def body(self) -> bytes:
    if isinstance(self.text, bytes):
      return self.text
    if self.status != 200:
      return json.dumps({'error': {'message': self.text}}).encode()
    return json.dumps({
        'id': 'x', 'object': 'chat.completion', 'created': 0, 'model': 'm',
        'choices': [{
            'index': 0, 'finish_reason': self.finish,
            'message': {'role': 'assistant', 'content': self.text},
        }],
        'usage': {
            'prompt_tokens': TOKENS[0], 'completion_tokens': TOKENS[1],
            'total_tokens': sum(TOKENS),
        },
    }).encode()  # pyformat: disable


Script = Callable[[dict[str, Any]], Reply]


class Server:
  """What was asked, and where.

  Attributes:
    requests: bodies, in the order of arrival.
    keys: the Authorization header of each.
    most: requests that were open together.
  """

  def __init__(self, url: str):
    self.url = url
    self.requests: list[dict[str, Any]] = []
    self.keys: list[str] = []
    self.most = 0

  def config(self, **changes: Any) -> LlmConfig:
    """Settings for this server that wait for nothing."""
    fields = {'max_retries': 2, 'backoff_s': 0.001, 'timeout_s': 20.0}
    return LlmConfig(self.url, 'm', **{**fields, **changes})


@contextlib.contextmanager
def serve(script: Script) -> Iterator[Server]:
  """A server for as long as the block runs."""
  lock, opened = threading.Lock(), [0]

  class Handler(http.server.BaseHTTPRequestHandler):
    """Answers each request as the script says."""

    def do_POST(self):
      length = int(self.headers['Content-Length'])
      body = json.loads(self.rfile.read(length))
      with lock:
        server.requests.append(body)
        server.keys.append(self.headers['Authorization'])
        opened[0] += 1
        server.most = max(server.most, opened[0])
        reply = script(body)
      try:
        time.sleep(reply.delay_s)
        if reply.after:
          reply.after.wait(2.0)
        content = reply.body()
        self.send_response(reply.status)
        for name, value in {
            'Content-Type': 'application/json',
            'Content-Length': str(len(content)), **reply.headers,
        }.items():  # pyformat: disable
          self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)
      except ConnectionError:
        pass  # A client that waits no longer.
      finally:
        with lock:
          opened[0] -= 1

    def log_message(self, *args):
      pass

  with http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler) as httpd:
    httpd.daemon_threads = True
    server = Server(f'http://127.0.0.1:{httpd.server_port}/v1')
    thread = threading.Thread(target=httpd.serve_forever, args=(0.01,))
    thread.start()
    try:
      yield server
    finally:
      httpd.shutdown()
      thread.join()
