"""Scores over HTTP, from a small server that answers as vLLM does and fails as servers do."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch

from evaluation.backends import http_client
from evaluation.backends.hf_backend import HFBackend
from evaluation.backends.http_backend import HTTPBackend
from evaluation.scoring import Request, Score
from foundation.errors import UserError

KEY = "sk-very-secret"
Answer = tuple[int, dict[str, Any], dict[str, str]]


@dataclass
class Server:
    """What the stand-in server does and saw; `plan` is consulted before each answer by path and count of requests."""

    backend: HFBackend
    url: str = ""
    score_route: bool = False
    card: dict[str, Any] = field(default_factory=dict)
    plan: Callable[[str, int], Answer | str | None] = lambda path, count: None
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    connections: set[int] = field(default_factory=set)
    at_once: int = 0
    most_at_once: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, path: str, payload: dict[str, Any]) -> Answer:
        if path == "/v1/models":
            return 200, {"object": "list", "data": [self.card]}, {}
        if path == "/v1/completions":
            return 200, self.completion(payload), {}
        if path == "/v1/score" and self.score_route:
            return 200, self.scores(payload), {}
        return 404, {"detail": "Not Found"}, {}

    @torch.inference_mode()
    def completion(self, payload: dict[str, Any]) -> dict[str, Any]:
        prompt = payload["prompt"]
        table = torch.log_softmax(self.backend._model(input_ids=torch.tensor([prompt])).logits[0].float(), dim=-1)
        best = table.max(dim=-1)
        word = self.backend.tokenizer.decode
        chosen: list[float | None] = [None, *(float(row[token]) for row, token in zip(table, prompt[1:], strict=False))]
        top: list[Any] = [None]
        for row, token in enumerate(prompt[1:]):
            # As vLLM does: the token itself and the best one, by their texts.
            top.append({word([token]): chosen[row + 1], word([int(best.indices[row])]): float(best.values[row])})
        written = int(best.indices[-1])
        chosen.append(float(best.values[-1]))
        top.append({word([written]): float(best.values[-1])})
        return {
            "choices": [
                {
                    "text": word(prompt) + word([written]),
                    "logprobs": {"token_logprobs": chosen, "top_logprobs": top},
                }
            ],
            "usage": {"prompt_tokens": len(prompt), "prompt_tokens_details": {"cached_tokens": 1}},
        }

    def scores(self, payload: dict[str, Any]) -> dict[str, Any]:
        context = tuple(payload["context"])
        requests = [Request(context, tuple(continuation)) for continuation in payload["continuations"]]
        found = {index: score for batch in self.backend.score(requests) for index, score in batch.scores.items()}
        entries = [
            {"logprob": found[index].logprob, "is_greedy": found[index].is_greedy, "token_logprobs": []}
            for index in range(len(requests))
        ]
        return {"scores": entries, "usage": {"prompt_tokens": len(context) + 3}}


def handler(server: Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 30

        def do_GET(self) -> None:
            self.respond({})

        def do_POST(self) -> None:
            self.respond(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def respond(self, payload: dict[str, Any]) -> None:
            with server.lock:
                server.asked.append((self.path, payload))
                server.connections.add(self.client_address[1])
                server.at_once += 1
                server.most_at_once = max(server.most_at_once, server.at_once)
                planned = server.plan(self.path, sum(path == self.path for path, _ in server.asked))
            try:
                if planned == "hang up":
                    self.close_connection = True
                    return
                if self.headers.get("Authorization") != f"Bearer {KEY}":
                    planned = (401, {"error": {"message": f"no such key: {self.headers.get('Authorization')}"}}, {})
                assert not isinstance(planned, str)
                with server.lock:
                    status, document, headers = planned or server.answer(self.path, payload)
                # Others can come meanwhile.
                time.sleep(0.005)
                body = json.dumps(document).encode()
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)
            finally:
                with server.lock:
                    server.at_once -= 1

        def log_message(self, *arguments: object) -> None:
            """Quiet."""

    return Handler


@pytest.fixture(scope="module")
def local(model_folder: Path) -> HFBackend:
    return HFBackend(model_folder, "float32")


@pytest.fixture
def server(local: HFBackend, model_folder: Path) -> Iterator[Server]:
    state = Server(local, card={"id": "tiny", "root": str(model_folder), "max_model_len": 64})
    listener = ThreadingHTTPServer(("127.0.0.1", 0), handler(state))
    listener.daemon_threads = True
    state.url = f"http://127.0.0.1:{listener.server_address[1]}"
    thread = threading.Thread(target=listener.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield state
    finally:
        listener.shutdown()
        listener.server_close()
        thread.join(10)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses between attempts, which are not waited for."""
    waited: list[float] = []

    class Clock:
        @staticmethod
        def sleep(seconds: float) -> None:
            waited.append(seconds)

    monkeypatch.setattr(http_client, "time", Clock)
    return waited


def opened(server: Server, **options: Any) -> HTTPBackend:
    return HTTPBackend(server.url, **{"api_key": KEY, "timeout": 20.0, **options})


def requests(local: HFBackend) -> list[Request]:
    """Contexts with several answers each, of which one is the greedy one."""
    found = []
    for text in ("the river", "a small house was built before winter", "tea, paper or iron"):
        context = tuple(local.tokenizer.encode(text))
        greedy: list[int] = []
        for _ in range(3):
            with torch.inference_mode():
                greedy.append(int(local._model(input_ids=torch.tensor([[*context, *greedy]])).logits[0, -1].argmax()))
        answers = [tuple(greedy), (*greedy[:2], 11), (5,), (5, 9)]
        found.extend(Request(context, answer) for answer in answers)
    return found


def scored(backend: Any, asked: list[Request]) -> tuple[dict[int, Score], int]:
    found: dict[int, Score] = {}
    computed = 0
    for batch in backend.score(asked):
        found.update(batch.scores)
        computed += batch.tokens_computed
    assert found.keys() == set(range(len(asked)))
    return found, computed


@pytest.mark.parametrize("score_route", [False, True])
def test_scores_are_those_of_the_local_backend(server: Server, local: HFBackend, score_route: bool) -> None:
    server.score_route = score_route
    backend = opened(server, concurrency=3)
    server.asked.clear()
    asked = requests(local)
    found, computed = scored(backend, asked)
    expected, _ = scored(local, asked)
    for index, score in found.items():
        assert score.logprob == pytest.approx(expected[index].logprob, abs=1e-4)
        assert score.is_greedy == expected[index].is_greedy
    assert [found[index].is_greedy for index in range(4)] == [True, False, False, False]
    assert backend.max_length == 62
    if score_route:
        assert computed == sum(len(request.context) + 3 for request in asked[::4])
    else:
        assert computed == sum(len(request.context) + len(request.continuation) - 1 for request in asked)
    backend.close()


def test_one_request_a_context_where_the_server_can_score(server: Server, local: HFBackend) -> None:
    server.score_route = True
    backend = opened(server)
    server.asked.clear()
    asked = requests(local)
    scored(backend, asked)
    assert [path for path, _ in server.asked] == ["/v1/score"] * 3
    payloads = {tuple(payload["context"]): payload for _, payload in server.asked}
    for first in range(0, len(asked), 4):
        assert payloads[asked[first].context] == {
            "model": "tiny",
            "context": list(asked[first].context),
            "continuations": [list(request.continuation) for request in asked[first : first + 4]],
        }


def test_prompts_are_token_ids_that_the_server_echoes(server: Server) -> None:
    backend = opened(server)
    server.asked.clear()
    scored(backend, [Request((1, 2, 3), (4, 5))])
    payload = {"prompt": [1, 2, 3, 4, 5], "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}
    assert server.asked == [("/v1/completions", {"model": "tiny", **payload})]


def test_connections_are_bounded_and_reused(server: Server) -> None:
    backend = opened(server, concurrency=2)
    scored(backend, [Request((number,), (4, 5)) for number in range(1, 30)])
    assert len(server.asked) > 30
    assert server.most_at_once <= 2
    assert len(server.connections) <= 2


def test_a_busy_server_is_asked_again_after_the_time_it_names(server: Server, pauses: list[float]) -> None:
    backend = opened(server)
    server.asked.clear()
    plans: list[Answer | str] = [
        (429, {"error": {"message": "queue full"}}, {"Retry-After": "7"}),
        (503, {"detail": "draining"}, {"Retry-After": "Fri, 01 Jan 2100 00:00:00 GMT"}),
        "hang up",
        (502, {}, {}),
    ]
    server.plan = lambda path, count: plans[count - 1] if count <= len(plans) else None
    found, _ = scored(backend, [Request((1, 2), (3,))])
    assert len(server.asked) == 5
    assert found[0].logprob < 0
    assert pauses[0] == 7
    assert pauses[1] == 60
    assert 1.5 <= pauses[2] <= 2.5
    assert 3 <= pauses[3] <= 5


@pytest.mark.parametrize("plan", ["hang up", (503, {"error": {"message": "no worker"}}, {})])
def test_attempts_end(server: Server, pauses: list[float], plan: Any) -> None:
    backend = opened(server)
    server.asked.clear()
    server.plan = lambda path, count: plan
    with pytest.raises(UserError, match=r"/v1/completions could not be had in 7 attempts \((no worker|503|Remote)"):
        scored(backend, [Request((1, 2), (3,))])
    assert len(server.asked) == 7
    assert len(pauses) == 6


def test_a_wrong_key_is_an_error_of_one_line_without_it(server: Server, pauses: list[float]) -> None:
    with pytest.raises(UserError, match=r"/v1/models answered 401: no such key.*pass the right API key") as error:
        opened(server, api_key="sk-another-secret")
    assert "another-secret" not in str(error.value)
    assert "\n" not in str(error.value)
    assert not pauses


def test_a_request_that_the_server_refuses_is_not_repeated(server: Server, pauses: list[float]) -> None:
    backend = opened(server)
    server.asked.clear()
    server.plan = lambda path, count: (400, {"error": {"message": "prompt too\nlong", "code": 400}}, {})
    with pytest.raises(UserError, match="answered 400: prompt too long"):
        scored(backend, [Request((1, 2), (3,))])
    assert len(server.asked) == 1


def test_a_server_that_is_not_there(pauses: list[float]) -> None:
    with pytest.raises(UserError, match="is the server up"):
        HTTPBackend("http://user:sk-in-the-url@127.0.0.1:9")
    with pytest.raises(UserError) as error:
        HTTPBackend("http://user:sk-in-the-url@127.0.0.1:9")
    assert "sk-in-the-url" not in str(error.value)


def without_logprobs(path: str, count: int) -> Answer | None:
    """A server that echoes, but gives log-probabilities of what it writes only."""
    if path != "/v1/completions":
        return None
    text = "The quick brown fox jumps over 13 lazy dogs: naïve, isn't it? Yes"
    return 200, {"choices": [{"text": text, "logprobs": {"token_logprobs": [-1.0], "top_logprobs": [{"a": -1.0}]}}]}, {}


def without_echo(path: str, count: int) -> Answer | None:
    if path != "/v1/completions":
        return None
    return 200, {"choices": [{"text": " Yes", "logprobs": None}]}, {}


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (without_logprobs, "does not return the log-probabilities of a prompt's tokens"),
        (without_echo, "does not read the tokens"),
        (lambda path, count: (200, {"data": [{"id": "one"}, {"id": "two"}]}, {}), "several models: name one.*one, two"),
        (lambda path, count: (200, {"models": []}, {}), "another form than OpenAI's"),
    ],
)
def test_a_server_that_cannot_be_used_is_refused_at_the_start(server: Server, plan: Any, message: str) -> None:
    server.plan = plan
    with pytest.raises(UserError, match=message):
        opened(server)


def test_an_unknown_model_is_refused_with_the_known(server: Server) -> None:
    with pytest.raises(UserError, match="serves no model 'big'; there are: tiny"):
        opened(server, model="big")


def test_the_context_can_be_given_where_the_server_does_not_say_it(server: Server) -> None:
    del server.card["max_model_len"]
    with pytest.raises(UserError, match="pass --max-length"):
        opened(server)
    assert opened(server, max_length=40).max_length == 38


def test_a_tokenizer_that_cannot_be_had(server: Server, model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The environment variable is read only once, when the library is imported.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    server.card["root"] = "/nowhere/tiny"
    with pytest.raises(UserError, match="no tokenizer in /nowhere/tiny or tiny: pass --tokenizer"):
        opened(server)
    assert opened(server, tokenizer=model_folder).tokenizer.eos_token_id == 50256


def test_a_url_may_end_in_its_version(server: Server) -> None:
    server.url += "/v1/"
    assert opened(server).max_length == 62
