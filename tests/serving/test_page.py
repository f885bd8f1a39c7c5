"""The page in a browser, before a server that answers as vLLM does."""

import json
import re
from collections.abc import Iterator

import httpx
import pytest

from tests.evaluation.test_report_page import BROWSER, luminance
from tests.serving.page_browser import PageBrowser
from tests.serving.stub_openai import Stub, running_stub

HOSTILE = "<img src=x onerror='window.taken=1'><script>window.taken=1</script>\x1b[31m"
in_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium to open the page in")
DONE = "document.querySelectorAll('.answer').length && !document.querySelector('.running')"
ANSWERS = "[...document.querySelectorAll('.text')].map((one) => one.textContent)"
FIRST_TOKEN = ".text .token"


@pytest.fixture
def stub() -> Iterator[Stub]:
    with running_stub(Stub()) as running:
        yield running


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageBrowser]:
    started = PageBrowser(tmp_path_factory.mktemp("profile"))
    yield started
    started.close()


def opened(browser: PageBrowser, stub: Stub) -> PageBrowser:
    browser.visit(f"{stub.url}/")
    browser.wait("document.getElementById('model').value || !document.getElementById('key-form').hidden")
    return browser


@pytest.fixture
def page(browser: PageBrowser, stub: Stub) -> PageBrowser:
    return opened(browser, stub)


def generate(page: PageBrowser, prompt: str = "The capital of France is") -> None:
    page.type("#prompt", prompt)
    page.press("Enter", ctrl=True)


@in_browser
def test_answer_streams_with_its_cost_and_nothing_outside_is_asked(page: PageBrowser, stub: Stub) -> None:
    stub.pause = 0.3
    generate(page)
    page.wait(f"{ANSWERS}[0] === ' Paris'")
    assert stub.sent < len(stub.tokens)
    page.wait(DONE)
    assert page.run(ANSWERS) == [" Paris,\nnaïve"]
    stats = page.run("document.querySelector('.stats').textContent")
    assert "7 tokens of prompt, 4 of answer" in stats
    waited = re.search(r"first token after (\d+\.\d+) s", stats)
    assert waited is not None and float(waited[1]) >= stub.pause
    assert "tokens/s" in stats
    assert "ended at max tokens" in stats
    (body,) = stub.requests
    assert body.items() >= {"prompt": "The capital of France is", "model": "demo-vllm", "temperature": 0.8}.items()
    assert isinstance(body["seed"], int)
    assert {url.removeprefix(stub.url)[0] for url in page.asked()} == {"/"}
    assert all(url.startswith(stub.url) for url in page.asked())
    assert page.complaints() == []


@in_browser
@pytest.mark.parametrize("how", ["button", "key"])
def test_stop_ends_the_request_on_the_server(page: PageBrowser, stub: Stub, how: str) -> None:
    stub.tokens = [(f" {number}", 0.5, {}) for number in range(100)]
    stub.pause = 0.1
    generate(page)
    page.wait("document.querySelectorAll('.token').length > 2")
    if how == "key":
        page.press("Escape")
    else:
        page.click("#stop")
    page.wait(DONE)
    page.wait("document.querySelector('.stats').textContent.startsWith('stopped')")
    for _ in range(100):
        if stub.aborted:
            break
        page.run("new Promise((done) => setTimeout(done, 20))")
        httpx.get(f"{stub.url}/ready")
    assert stub.aborted == 1
    assert stub.sent < 60
    assert page.run("document.getElementById('notice').hidden")


@in_browser
def test_hover_and_keys_show_probabilities(page: PageBrowser) -> None:
    generate(page)
    page.wait(DONE)
    page.point(FIRST_TOKEN)
    page.wait("!document.getElementById('detail').hidden")
    shown = page.run("document.getElementById('detail').innerText")
    assert "␣Paris" in shown
    assert "62.0 %" in shown
    assert shown.index("␣Paris") < shown.index("␣London") < shown.index("␣the")
    page.point("h1")
    page.wait("document.getElementById('detail').hidden")
    page.run(f"document.querySelector({FIRST_TOKEN!r}).focus()")
    page.press("ArrowRight")
    page.press("ArrowRight")
    assert "3.00 %" in page.wait("document.getElementById('detail').innerText")
    assert "rank 3" in page.text("detail")
    assert page.text("token-status").startswith("3.00 %; else ␣which 50.0 %")
    page.press("Escape")
    assert page.run("document.getElementById('detail').hidden")


@in_browser
def test_colours_are_by_probability(page: PageBrowser) -> None:
    generate(page)
    page.wait(DONE)
    ground = "[...document.querySelectorAll('.text .token')].map((one) => getComputedStyle(one).backgroundColor)"
    assert len(set(page.run(ground))) == 1
    page.click("#colour")
    colours = page.run(ground)
    assert len(set(colours)) == 4
    assert colours[3] == "rgba(0, 0, 0, 0)"  # the likely one


@in_browser
def test_presets_fill_prompt_and_settings(page: PageBrowser) -> None:
    assert page.run("document.querySelectorAll('.presets button').length") >= 8
    page.run("document.querySelectorAll('.presets button')[1].click()")
    prompt = page.run("document.getElementById('prompt').value")
    assert prompt.startswith("Q: 11 $^% 2 = ?\nA: 22\n")
    assert prompt.endswith("Q: 8 $^% 5 = ?\nA:")
    assert page.run("document.getElementById('stop-A').value") == "\\nQ:"
    page.run("document.querySelectorAll('.presets button')[2].click()")
    assert "The judge advised the professors. True or False?" in page.run("document.getElementById('prompt').value")
    page.run("document.execCommand('undo')")
    assert page.run("document.getElementById('prompt').value") == prompt


@in_browser
def test_all_settings_are_sent_as_shown(page: PageBrowser, stub: Stub) -> None:
    wanted = {"max_tokens": 3, "temperature": 0.5, "top_p": 0.9, "top_k": 7, "repetition_penalty": 1.1, "seed": 5}
    for name, value in wanted.items():
        page.type(f"#{name}-A", str(value))
    page.type("#stop-A", "\\nQ:\nend")
    generate(page)
    page.wait(DONE)
    assert stub.requests[0].items() >= {**wanted, "stop": ["\nQ:", "end"], "logprobs": 5}.items()
    page.type("#top_p-A", "3")
    page.press("Enter", ctrl=True)
    assert page.run("document.activeElement.id") == "top_p-A"
    assert len(stub.requests) == 1


@in_browser
def test_two_settings_are_asked_beside_each_other(page: PageBrowser, stub: Stub) -> None:
    page.click("#compare")
    page.type("#temperature-B", "1.5")
    generate(page)
    page.wait(DONE)
    assert len(page.run(ANSWERS)) == 2
    one, other = sorted(stub.requests, key=lambda body: float(body["temperature"]))
    assert (one.pop("temperature"), other.pop("temperature")) == (0.8, 1.5)
    assert one == other
    titles = page.run("[...document.querySelectorAll('.answer h3')].map((one) => one.textContent)")
    assert titles == ["A: temperature 0.8", "B: temperature 1.5"]


@in_browser
def test_key_is_asked_for_and_stays_out_of_url_and_command(browser: PageBrowser, stub: Stub) -> None:
    stub.key = "sk-secret"
    page = opened(browser, stub)
    assert page.run("document.activeElement.id") == "key"
    page.type("#key", "wrong")
    page.press("Enter")
    page.run("document.querySelector('#key-form button').click()")
    page.wait("document.getElementById('key-reason').textContent.includes('does not know')")
    page.type("#key", "sk-secret")
    page.run("document.querySelector('#key-form button').click()")
    page.wait("document.getElementById('model').value && document.getElementById('key-form').hidden")
    generate(page)
    page.wait(DONE)
    assert stub.keys == ["Bearer sk-secret"]
    assert not any("sk-secret" in url for url in page.asked())
    assert page.run("Object.values(localStorage).length") == 0
    script = (
        "import('/static/request.js').then((one) => one.curl({path: 'v1/completions', body: {prompt: \"it's\"}}, 1))"
    )
    found = page.send("Runtime.evaluate", {"expression": script, "awaitPromise": True, "returnByValue": True})
    assert "$MTNLG_API_KEY" in found["result"]["value"]
    assert "it'\\''s" in found["result"]["value"]
    page.run("sessionStorage.clear()")


@in_browser
def test_refused_key_while_generating_is_asked_for_again(page: PageBrowser, stub: Stub) -> None:
    stub.key = "changed"
    generate(page)
    page.wait("!document.getElementById('key-form').hidden")
    assert page.run("document.activeElement.id") == "key"


@in_browser
def test_busy_server_is_waited_for(page: PageBrowser, stub: Stub) -> None:
    stub.refusals.append((429, "the queue is full", {"Retry-After": "2"}))
    generate(page)
    page.wait("!document.getElementById('notice').hidden")
    assert "the queue is full. You can try again in 2 s." in page.text("notice-text")
    assert page.run("document.getElementById('again').disabled")
    page.press("Enter", ctrl=True)
    assert stub.requests == []
    page.wait("!document.getElementById('again').disabled")
    page.click("#again")
    page.wait(f"{DONE} && {ANSWERS}[0] !== ''")
    assert page.run("document.getElementById('notice').hidden")
    assert len(stub.requests) == 1


@in_browser
def test_loading_server_is_watched(page: PageBrowser, stub: Stub) -> None:
    stub.ready = False
    generate(page)
    page.wait("document.getElementById('state').textContent === 'loading the model'")
    assert "not ready" in page.text("notice-text")
    stub.ready = True
    page.wait("document.getElementById('notice-text').textContent === 'The server takes requests again.'")
    assert page.text("state") == "ready"


@in_browser
def test_broken_stream_keeps_what_came(page: PageBrowser, stub: Stub) -> None:
    stub.breaks_after = 2
    stub.pause = 0.5
    generate(page)
    page.wait("!document.getElementById('notice').hidden")
    assert "broke off" in page.text("notice-text")
    assert page.run(ANSWERS) == [" Paris,"]


@in_browser
def test_other_refusal_is_told_in_the_servers_words(page: PageBrowser, stub: Stub) -> None:
    stub.refusals.append((400, f"too long: {HOSTILE}", {}))
    generate(page)
    page.wait("!document.getElementById('notice').hidden")
    assert "too long: <img" in page.text("notice-text")
    assert page.run("document.getElementById('again').hidden")
    assert page.run("typeof window.taken") == "undefined"


@in_browser
def test_hostile_answer_is_text(page: PageBrowser, stub: Stub) -> None:
    stub.tokens = [(HOSTILE, 0.5, {"<b>x</b>": 0.4}), ("</div>", 0.5, {})]
    generate(page, HOSTILE[:-5])
    page.wait(DONE)
    assert page.run(ANSWERS) == [f"{HOSTILE}</div>"]
    page.point(FIRST_TOKEN)
    page.wait("document.getElementById('detail').textContent.includes('<b>x</b>')")
    assert page.run("document.images.length") == 0
    assert page.run("typeof window.taken") == "undefined"
    for order in (
        "document.createElement('script').src = 'data:,'",
        "document.body.innerHTML = '<b>'",
        "fetch('//x.test')",
    ):
        refused = page.send("Runtime.evaluate", {"expression": order, "awaitPromise": True})
        assert "exceptionDetails" in refused, order


@in_browser
def test_text_that_a_stop_string_cuts_is_shown_once(page: PageBrowser, stub: Stub) -> None:
    stub.tokens = [("", 0.9, {}), ("é", 0.5, {}), (" b", 0.5, {}), (" c\n", 0.5, {}), ("Q", 0.5, {}), (":", 0.5, {})]
    stub.text = "é b c"
    generate(page)
    page.wait(DONE)
    tokens = page.run("[...document.querySelectorAll('.text .token')].map((one) => one.textContent)")
    assert tokens == ["é", " b", " c", "∎"]
    assert page.run("JSON.parse(sessionStorage.getItem('mtnlg-history'))[0].runs[0].text") == "é b c"


@in_browser
def test_history_brings_prompt_settings_and_answer_back(page: PageBrowser, stub: Stub) -> None:
    page.type("#temperature-A", "0.3")
    generate(page, "first")
    page.wait(DONE)
    stub.tokens = [(" other", 0.5, {})]
    page.type("#temperature-A", "1")
    generate(page, "second")
    page.wait(f"{DONE} && {ANSWERS}[0] === ' other'")
    page.run("document.querySelectorAll('#history button')[1].click()")
    assert page.run("document.getElementById('prompt').value") == "first"
    assert page.run("document.getElementById('temperature-A').value") == "0.3"
    assert page.run(ANSWERS) == [" Paris,\nnaïve"]
    page.visit(f"{stub.url}/")
    assert page.run("document.querySelectorAll('#history button').length") >= 2
    page.run("document.getElementById('clear-history').click()")
    assert page.run("document.getElementById('history-section').hidden")


@in_browser
def test_continuing_adds_the_answer_to_the_prompt(page: PageBrowser, stub: Stub) -> None:
    generate(page, "Capital:")
    page.wait(DONE)
    page.run("[...document.querySelectorAll('.tools button')].at(-1).click()")
    assert page.run("document.getElementById('prompt').value") == "Capital: Paris,\nnaïve"


@in_browser
def test_chat_is_there_only_with_a_template(browser: PageBrowser, stub: Stub) -> None:
    page = opened(browser, stub)
    assert page.run("document.getElementById('mode').hidden")
    stub.chat = True
    page = opened(browser, stub)
    page.wait("!document.getElementById('mode').hidden")
    page.run("document.querySelector('input[value=chat]').click()")
    page.type("#system", "Be brief.")
    generate(page, "Capital?")
    page.wait(DONE)
    page.run("[...document.querySelectorAll('.tools button')].at(-1).click()")
    generate(page, "And of Spain?")
    page.wait(f"{DONE} && document.querySelectorAll('#history button').length > 1")
    roles = [(message["role"], message["content"]) for message in stub.requests[1]["messages"]]
    assert roles == [
        ("system", "Be brief."),
        ("user", "Capital?"),
        ("assistant", " Paris,\nnaïve"),
        ("user", "And of Spain?"),
    ]
    assert stub.requests[1].items() >= {"logprobs": True, "top_logprobs": 5}.items()
    page.point(FIRST_TOKEN)
    page.wait("document.getElementById('detail').textContent.includes('62.0 %')")


@in_browser
@pytest.mark.parametrize("compare", [False, True])
def test_page_is_not_wider_than_a_phone(browser: PageBrowser, stub: Stub, compare: bool) -> None:
    size = {"width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": True}
    browser.send("Emulation.setDeviceMetricsOverride", size)
    try:
        page = opened(browser, stub)
        stub.tokens = [("w" * 200, 0.5, {"o" * 100: 0.4})]
        if compare:
            page.run("document.getElementById('compare').click()")
        page.run("document.getElementById('settings').open = true")
        generate(page, "W" * 300)
        page.wait(DONE)
        page.run(f"document.querySelector({FIRST_TOKEN!r}).focus()")
        assert page.run("document.documentElement.scrollWidth") <= 360
        right = "Math.max(...[...document.querySelectorAll('body *')].filter((one) => !one.closest('.skip'))"
        assert page.run(f"{right}.map((one) => one.getBoundingClientRect().right))") <= 360
    finally:
        browser.send("Emulation.clearDeviceMetricsOverride")


@in_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_contrasts_with_the_ground(browser: PageBrowser, stub: Stub, scheme: str) -> None:
    browser.send("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
    page = opened(browser, stub)
    pairs = json.loads(
        page.run("""JSON.stringify([["--ink", "--ground"], ["--ink", "--raised"], ["--soft", "--ground"],
            ["--soft", "--raised"], ["--on-accent", "--accent"], ["--accent", "--ground"], ["--ink", "--tint"]].map(
            (pair) => pair.map((one) => getComputedStyle(document.documentElement).getPropertyValue(one).trim())))""")
    )
    browser.send("Emulation.setEmulatedMedia", {"features": []})
    for ink, ground in pairs[:-1]:
        assert contrast(luminance(ink), luminance(ground)) >= 4.5, (ink, ground)
    # The strongest colour of a token is 68 % tint; luminance lies between the tint's and the ground's.
    ink, tint = pairs[-1]
    share = 0.68 * luminance(tint) + 0.32 * luminance(pairs[0][1])
    assert contrast(luminance(ink), share) >= 4.5


def contrast(one: float, other: float) -> float:
    """WCAG 2.2, success criterion 1.4.3."""
    light, dark = sorted((one, other), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@in_browser
def test_line_breaks_can_be_pointed_at_where_colours_are_shown(page: PageBrowser) -> None:
    generate(page)
    page.wait(DONE)
    assert page.run("document.querySelector('.breaks').getClientRects()[0].width") == 0
    page.click("#colour")
    page.point(".breaks")
    assert "3.00 %" in page.wait("document.getElementById('detail').innerText")
    assert page.run(ANSWERS) == [" Paris,\nnaïve"]
