"""The page's files: types, caching, headers, and what their source may not hold."""

from pathlib import Path

import httpx

from serving.page_routes import page_paths
from tests.serving.stub_openai import Stub, running_stub


def test_files_have_types_tags_and_a_strict_policy() -> None:
    types = {"": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
    with running_stub(Stub()) as stub, httpx.Client(base_url=stub.url) as client:
        for path in sorted(page_paths()):
            answer = client.get(path)
            assert answer.status_code == 200
            assert answer.headers["content-type"].startswith(types[path.rpartition(".")[2] if "." in path else ""])
            policy = answer.headers["content-security-policy"]
            assert policy.startswith("default-src 'none'")
            assert "unsafe" not in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["cache-control"] == "no-cache"
            again = client.get(path, headers={"If-None-Match": f'"other", W/{answer.headers["etag"]}'})
            assert (again.status_code, again.content) == (304, b"")
            assert client.get(path, headers={"If-None-Match": '"other"'}).content == answer.content
            head = client.head(path)
            assert (head.status_code, head.content, head.headers["etag"]) == (200, b"", answer.headers["etag"])
        assert client.get("/static/../page_routes.py").status_code == 404
        assert client.get("/static/nothing.js").status_code == 404
        assert client.post("/").status_code == 405


def test_scripts_never_make_markup_of_text() -> None:
    folder = Path(__file__).parents[2] / "serving" / "page"
    sources = {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}
    assert sources
    for name, source in sources.items():
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "http:", "https:"):
            found = source.replace("http://www.w3.org/2000/svg", "") if name == "icon.svg" else source
            assert word not in found, (name, word)
    assert " on" not in "".join(part.split(">")[0] for part in sources["index.html"].split("<")[1:])
