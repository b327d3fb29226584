"""The studio page in a real browser, on runs of every kind."""

import json
import re
import xml.etree.ElementTree as ET
from math import exp
from urllib.parse import quote_plus, urlencode

import pytest

from tests.browser.conftest import RUNS
from tests.browser.hostile import hostile, is_unseen

INPUTS = {
    "rnn": "abc", "lstm": "abcdab", "transformer": "abcd", "classifier": "abc x1",
    "tagger": "a b c d", "language": "abc d",
}  # fmt: skip
DRAWN = {  # what a view has, whatever it shows
    "attention": ".heat canvas", "tree": ".node", "tokens": ".column", "saliency": ".salient span",
    "flow": ".chart", "positions": ".heat canvas", "embeddings": ".stars text",
    "curves": ".chart", "worst": ".worst tbody tr",
}  # fmt: skip


def link(run, view="none", **more):
    short = {"set.max_len": 8} if run == "language" else {}
    return urlencode({"run": run, "in": INPUTS[run], "view": view} | short | more)


def settled(page):
    """Once the answer and the view are there."""
    page.wait_for_function(
        "() => document.querySelector('.answer') && !document.querySelector('.waiting')"
        " && document.querySelector('.answer').getAttribute('aria-busy') === 'false'"
        " && document.querySelector('.answer').childElementCount"
    )


def answer_of(page):
    return page.evaluate(
        "() => [...document.querySelectorAll('.answer .token')].map(t => t.textContent).join('')"
    )


def remembered(page, part):
    """Once the link has this, or never."""
    return page.wait_for_function("part => location.hash.includes(part)", arg=part)


def asked(page, path, body):
    """What the server answers to this, asked from the page."""
    return page.evaluate(
        """async ([path, body]) => (await fetch(path, {method: 'POST', body: JSON.stringify(body),
           headers: {'Content-Type': 'application/json'}})).json()""",
        [path, body],
    )


@pytest.mark.parametrize("run", RUNS)
def test_every_view_of_every_run_is_drawn_and_none_is_too_wide_for_a_phone(page, run):
    wide, phone = page(link(run)), page(link(run), width=390, height=800, color_scheme="dark")
    settled(wide)
    tabs = wide.eval_on_selector_all("[role=tab]", "tabs => tabs.map(t => t.dataset.view)")
    listed = asked_runs(wide)[run]["views"]
    assert set(tabs) == {*listed, "curves", "worst"} - {"labels"}
    assert set(DRAWN) >= set(tabs)
    for tab in tabs:
        for one in (wide, phone):
            one.click(f"[data-view={tab}]")
            one.wait_for_selector(f".view-{tab} {DRAWN[tab]}")
        assert not wide.query_selector(".problem"), tab
        over = phone.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert over <= 0, f"{tab} is {over} pixels too wide"
    unnamed = wide.evaluate(
        """() => [...document.querySelectorAll(`button, select, input, textarea, canvas[tabindex],
           [role=button], [role=treeitem]`)].filter(one => one.offsetParent
           && !(one.textContent.trim() || one.ariaLabel || one.closest('label')))
           .map(one => `${one.tagName} ${one.className}`)"""
    )
    assert not unnamed


def asked_runs(page):
    found = page.evaluate("async () => (await fetch('api/v1/runs')).json()")
    return {run["name"]: run for run in found["runs"]}


def test_answers_come_as_one_types(page):
    one = page("run=transformer&view=none")
    one.keyboard.press("Tab")
    one.fill("textarea", "ab")
    settled(one)
    first = asked(one, "api/v1/predict", {"run": "transformer", "inputs": ["ab"]})
    assert answer_of(one).removesuffix("∎") == first["predictions"][0]["text"]
    one.type("textarea", "cd")
    wanted = asked(one, "api/v1/predict", {"run": "transformer", "inputs": ["abcd"]})
    text = wanted["predictions"][0]["text"]
    one.wait_for_function(
        "text => [...document.querySelectorAll('.answer .token')].map(t => t.textContent)"
        ".join('').replace('∎', '') === text",
        arg=text,
    )
    assert remembered(one, "in=abcd")


def test_labels_have_their_probabilities_and_tags_stand_under_their_words(page):
    one = page(link("classifier"))
    settled(one)
    values = one.eval_on_selector_all(".answer .value", "all => all.map(v => v.textContent)")
    assert len(values) == 4
    assert sum(float(value.strip("<% ")) for value in values) == pytest.approx(100, abs=2)
    tagger = page(link("tagger"))
    settled(tagger)
    words = tagger.eval_on_selector_all(".word", "all => all.map(w => w.textContent)")
    assert words == INPUTS["tagger"].split()
    tags = tagger.eval_on_selector_all(".tag", "all => all.map(w => w.textContent)")
    tagger.click(".glossed")
    tagger.wait_for_selector(".popover .chosen")
    assert tagger.inner_text(".popover .chosen .name") == tags[0]


def test_a_text_goes_on_token_by_token_and_another_seed_is_another_text(page):
    one = page("run=language&view=none&set.kind=sample&set.max_len=12&in=abc")
    one.wait_for_function(
        "() => document.querySelector('.answer .facts')?.textContent.includes('tokens')"
    )
    first = answer_of(one)
    assert len(first) >= 1
    assert one.inner_text(".prompt") == "abc"
    one.click("text=Another")
    one.wait_for_function(
        "first => [...document.querySelectorAll('.answer .token')].map(t => t.textContent)"
        ".join('') !== first && document.querySelector('.answer .facts').textContent.trim()",
        arg=first,
    )
    assert remembered(one, "set.seed=2")
    one.click(".answer .token")
    one.wait_for_selector(".popover .bars .row")


def test_a_picked_alternative_is_forced_and_the_rest_decoded_anew(page):
    one = page(link("lstm"))
    settled(one)
    one.focus(".answer .token")
    one.keyboard.press("Enter")
    one.wait_for_selector(".popover button.row")
    rows = one.query_selector_all(".popover button.row")
    other = next(row for row in rows if row.get_attribute("aria-current") is None)
    wanted = other.query_selector(".name").inner_text()
    other.press("Enter")
    one.wait_for_selector(".answer .token.forced")
    assert answer_of(one).startswith(wanted)
    assert remembered(one, f"prefix={quote_plus(wanted)}")
    one.click("text=Let it go")
    one.wait_for_function("() => !document.querySelector('.answer .token.forced')")
    one.focus(".answer .token")
    one.keyboard.press("Enter")
    one.wait_for_selector(".popover")
    one.keyboard.press("Escape")
    assert not one.query_selector(".popover")
    assert one.evaluate("document.activeElement.className").startswith("token")


def test_a_searched_text_of_a_language_model_is_its_prompt_once(page):
    one = page(link("language", **{"set.kind": "beam"}))
    settled(one)
    with one.expect_request("**/inspect") as request:
        one.click("[data-view=saliency]")
    sent, text = request.value.post_data_json, answer_of(one).removesuffix("∎")
    assert sent["input"] == INPUTS["language"]
    assert sent["options"].get("target", "") == text
    one.wait_for_selector(".salient span")
    read = one.eval_on_selector_all(".salient span", "all => all.length")
    assert read == len(INPUTS["language"] + text) + 1
    one.click("[data-view=tree]")
    one.wait_for_selector(".node")
    one.click(".answer .token >> nth=1")
    one.wait_for_selector(".popover button.row")
    rows = one.query_selector_all(".popover button.row")
    with one.expect_response("**/predict") as answer:
        next(row for row in rows if row.get_attribute("aria-current") is None).click()
    one.wait_for_selector(".answer .token.forced")
    settled(one)
    (found,) = answer.value.json()["predictions"]
    assert found["text"] == INPUTS["language"] + answer_of(one).removesuffix("∎")
    one.wait_for_selector(".node")
    assert not one.query_selector(".problem")


def test_what_is_kept_of_a_completion_has_its_blank(page):
    one = page("run=language&view=none&set.kind=sample&in=abc")
    settled(one)
    events = [{"token": " d"}, {"token": " a"}, {"token": "b"}]
    lines = [f"data: {json.dumps(event | {'log_p': -1.0})}\n\n" for event in events]
    body = "".join(lines) + 'data: {"done": true, "text": ""}\n\n'
    one.route("**/stream", lambda route: route.fulfill(body=body, content_type="text/event-stream"))
    one.fill("textarea", "ab")
    one.wait_for_function("() => document.querySelector('.prompt')?.textContent === 'ab'")
    one.click(".answer .token >> nth=2")
    with one.expect_request("**/stream") as request:
        one.click("text=Keep what comes before")
    assert request.value.post_data_json["input"] == "ab d a"


def test_the_search_is_set_beside_the_answer(page):
    one = page(link("lstm"))
    settled(one)
    one.select_option("select[aria-label='how many answers']", "3")
    one.wait_for_selector(".nbest li:nth-child(2)")
    body = {"run": "lstm", "inputs": [INPUTS["lstm"]], "nbest": 3}
    wanted = asked(one, "api/v1/predict", body)["predictions"][0]["others"]
    shown = one.eval_on_selector_all(".nbest [dir]", "all => all.map(s => s.innerText)")
    assert shown == [other["text"] for other in wanted]
    one.fill("label:has-text('Longest answer') input", "2")
    one.wait_for_function("() => document.querySelectorAll('.answer .token').length <= 3")
    assert remembered(one, "set.max_len=2")


def test_the_tree_folds_and_says_why_a_branch_was_dropped(page):
    one = page(link("transformer", "tree", **{"set.width": 3, "o.pruned": "true"}))
    one.wait_for_selector(".node")
    body = {"run": "transformer", "kind": "tree", "input": INPUTS["transformer"]}
    wanted = asked(one, "api/v1/inspect", body | {"options": {"width": 3}})["nodes"]
    assert one.locator(".node").count() == len(wanted)
    one.hover(".node.dead >> nth=0")
    assert re.search(r"log p −[\d.]+ .*dropped", one.inner_text(".view-tree .readout"))
    one.click("text=Fold all but the answer")
    folded = one.locator(".node").count()
    assert folded < len(wanted)
    assert remembered(one, "o.folded")
    one.click("text=Unfold all")
    assert one.locator(".node").count() == len(wanted)
    one.focus(".node >> nth=0")
    one.keyboard.press("ArrowRight")
    assert one.evaluate("document.activeElement.getAttribute('aria-level')") == "2"


def test_attention_is_the_servers_and_its_pictures_are_linked(page):
    one = page(link("transformer", "attention"))
    one.wait_for_selector(".grid canvas")
    one.focus(".grid canvas")
    one.keyboard.press("ArrowRight")  # the first head of the first layer
    one.wait_for_selector(".view .facts:has-text('head 1')")
    options = {"layer": 0, "head": 0}
    body = {"run": "transformer", "kind": "attention", "input": INPUTS["transformer"]}
    wanted = asked(one, "api/v1/inspect", body | {"options": options})["map"]
    one.focus(".heat canvas")
    one.keyboard.press("ArrowDown")
    one.keyboard.press("ArrowRight")
    value = float(one.inner_text(".heat .readout").split()[-1])
    assert value == pytest.approx(wanted[1][1], abs=6e-4)
    assert remembered(one, "o.layer=0&o.head=0")
    one.select_option("select[aria-label=layer]", "")
    one.hover(".answer .token >> nth=0")  # a token of the answer is marked in the lines
    one.wait_for_selector(".ends.right li.lit")
    assert one.inner_text(".ends.right li.lit") == one.inner_text(".answer .token >> nth=0")
    one.hover(".ends.right li >> nth=1")  # and the other way round
    assert one.locator(".answer .token").nth(1).get_attribute("class").endswith("lit")


@pytest.mark.parametrize(("run", "view"), [("lstm", "attention"), ("tagger", "saliency")])
def test_a_link_reproduces_a_view_which_is_saved_as_svg_png_and_json(page, run, view):
    one = page(link(run, view))
    one.wait_for_selector(f".view-{view}")
    settled(one)
    again = page(one.url.partition("#")[2])
    again.wait_for_selector(f".view-{view}")
    settled(again)
    assert again.inner_text("main") == one.inner_text("main")
    saved = {}
    for kind in ("SVG", "PNG", "JSON"):
        with one.expect_download() as download:
            one.click(f".tools >> text={kind}")
        saved[kind] = download.value.path().read_bytes()
    assert saved["PNG"].startswith(b"\x89PNG")
    assert len(saved["PNG"]) > 2000
    texts = [node.text for node in ET.fromstring(saved["SVG"]).iter() if node.text]
    tokens = INPUTS[run].split() if run == "tagger" else list(INPUTS[run])
    assert set(tokens) <= {text.strip() for text in texts}
    found = json.loads(saved["JSON"])
    assert found["kind"] == view
    options = {"method": "gradient"} if view == "saliency" else {}
    text = asked(one, "api/v1/predict", {"run": run, "inputs": [INPUTS[run]]})["predictions"][0]
    options |= {"target": text["text"]} if run == "lstm" else {}
    body = {"run": run, "kind": view, "input": INPUTS[run], "options": options}
    assert found == asked(one, "api/v1/inspect", body)


def test_surprisal_is_the_log_probability_of_each_token(page):
    one = page(link("transformer", "tokens"))
    one.wait_for_selector(".column")
    body = {"run": "transformer", "inputs": [INPUTS["transformer"]], "details": True}
    tokens = asked(one, "api/v1/predict", body)["predictions"][0]["tokens"]
    shown = one.eval_on_selector_all(".column .amount", "all => all.map(a => a.textContent)")
    assert [float(bits) for bits in shown] == [
        pytest.approx(-token["log_p"] / 0.6931472, abs=0.06) for token in tokens
    ]
    assert sum(exp(one["log_p"]) for one in tokens[0]["alternatives"]) <= 1.001


def test_two_runs_stand_side_by_side_on_the_same_input_or_on_their_own(page):
    one = page(link("lstm", "attention"))
    settled(one)
    one.click("#compare")
    one.wait_for_selector(".side >> nth=1")
    one.wait_for_function("() => document.querySelectorAll('.answer .token').length > 1")
    boxes = one.locator("textarea")
    boxes.nth(0).fill("dcba")
    one.wait_for_function("() => document.querySelectorAll('textarea')[1].value === 'dcba'")
    one.uncheck("#linked")
    boxes.nth(1).fill("aa")
    one.wait_for_timeout(500)
    assert boxes.nth(0).input_value() == "dcba"
    again = page(one.url.partition("#")[2])
    again.wait_for_selector(".side >> nth=1")
    assert [again.locator("textarea").nth(i).input_value() for i in (0, 1)] == ["dcba", "aa"]
    one.click("#compare")
    assert one.locator(".side").count() == 1


def test_an_example_of_the_worst_is_tried(page):
    one = page(link("transformer", "worst"))
    one.wait_for_selector(".worst tbody tr")
    source = one.inner_text(".worst .given >> nth=0")
    one.click(".worst button >> nth=0")
    one.wait_for_function("s => document.querySelector('textarea').value === s", arg=source)


def test_500_hostile_strings_are_shown_as_they_are(page):
    words = hostile(500)
    assert len(words) == 500
    one = page("run=tagger&view=none")
    for start in range(0, 500, 125):
        some = words[start : start + 125]
        with one.expect_response("**/predict"):
            one.fill("textarea", " ".join(some))
        settled(one)
        found = one.evaluate(
            """() => [...document.querySelectorAll('.word')].map(word => [...word.childNodes].map(
               node => node.nodeType === 3 ? [node.nodeValue, ''] : ['', node.title]))"""
        )
        for word, parts in zip(some, found, strict=True):
            read = "".join(text or chr(int(name[2:], 16)) for text, name in parts)
            assert read == word
            visible = "".join(text for text, _ in parts)
            kept = [c for c in visible if is_unseen(c) and c not in "\u200d\ufe0f"]  # of an emoji
            assert not kept, (word, kept)
    assert one.evaluate("window.hacked") is None
    assert one.locator("main script, main iframe, main b, main a").count() == 0
    again = page(f"run=tagger&view=saliency&in={quote_plus('<b>x</b> a‮b')}")
    again.wait_for_selector(".view-saliency")
    assert again.inner_text(".word >> nth=0") == "<b>x</b>"


def test_what_goes_wrong_is_said_in_words(page):
    one = page("run=nowhere&in=abc")
    assert "no run “nowhere”" in one.inner_text(".problem")
    one.click("text=lstm")
    one.wait_for_selector("textarea")
    two = page(link("lstm", **{"set.width": 99}))
    two.wait_for_selector(".answer .problem")
    assert "width" in two.inner_text(".answer .problem")
    three = page("run=transformer&view=embeddings&o.word=zzz")
    three.wait_for_selector(".panel .problem")
    assert "not in the vocabulary" in three.inner_text(".panel .problem")
    three.route("**/api/**", lambda route: route.abort())
    three.fill("textarea", "ab")
    three.wait_for_selector(".answer .problem")
    assert "does not answer" in three.inner_text(".answer .problem")


def test_the_page_is_light_or_dark_and_remembers_it(page):
    one = page(link("lstm", "attention"), color_scheme="light")
    one.wait_for_selector(".heat canvas")
    ground = "getComputedStyle(document.body).backgroundColor"
    light = one.evaluate(ground)
    one.click("#theme")
    assert one.evaluate(ground) == light
    one.click("#theme")
    assert one.evaluate(ground) != light
    one.reload()
    one.wait_for_selector(".side")
    assert one.inner_text("#theme") == "Dark"
